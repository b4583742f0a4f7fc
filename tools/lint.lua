-- lint.lua -- the house rules as a program: named rules, waivers by name, unused waivers fail.
--
--     lua5.4 tools/lint.lua [--root FOLDER] [--warnings] [--list]
--
-- Prints "file:line: rule: text" for each finding; status 1 if there is one.  A line is excused
-- from one rule by a comment: lint, a colon, allow, the rule's name.
-- Rules that only warn (history) are counted, and printed with --warnings; they never fail.
--
-- Text under tests/golden, tests/fixtures and files of other kinds are not looked at.

local line_columns_max, function_lines_max = 100, 70
local waiver_pattern = "lint" .. ": allow ([%w-]+)"

local findings, warnings = {}, {}

-- READING

local function output_of(command)
    local pipe = assert(io.popen(command))
    local text = pipe:read("a")
    pipe:close()
    return text
end

local function quoted(path) return "'" .. path:gsub("'", "'\\''") .. "'" end

-- Returns the sorted paths of the tree, relative to root: git's view where there is git, so that
-- what a build leaves behind is not looked at.
local function list_files(root)
    local go = "cd " .. quoted(root) .. " && "
    local text = output_of(go .. "git ls-files -co --exclude-standard . 2>/dev/null")
    if text == "" then
        text = output_of(go .. "find . -name '.git' -prune -o -name 'build*' -prune -o " ..
                         "-type f -print")
    end
    local paths = {}
    for path in text:gmatch("[^\n]+") do
        path = path:gsub("^%./", "")
        local skipped = path:find("^tests/golden/") or path:find("^tests/fixtures/")
        if not skipped then paths[#paths + 1] = path end
    end
    table.sort(paths)
    return paths
end

local kind_of_extension = {
    c = "c", h = "c", cpp = "c", cu = "c", cuh = "c", lua = "lua",
    sh = "hash", py = "hash", cmake = "hash", ["in"] = "hash",
}

local function kind_of(path)
    local name = path:match("[^/]+$")
    if name == "CMakeLists.txt" or path == ".ci/run" then return "hash" end
    return kind_of_extension[name:match("%.(%w+)$") or ""]
end

-- Splits C text into code and comment: two texts of the same lines.  Strings stay in `code` as
-- quotes around blanks, and in `strings` as they are.
local function split_c(text)
    local code, comment, strings, i = {}, {}, {}, 1
    local function put(c, k, s)
        code[#code + 1], comment[#comment + 1], strings[#strings + 1] = c, k, s
    end
    local function blank(s) return (s:gsub("[^\n]", " ")) end
    while i <= #text do
        local two, one = text:sub(i, i + 1), text:sub(i, i)
        local piece
        if two == "//" then
            piece = text:match("^[^\n]*", i)
            -- A template's statement line is code.
            if piece:sub(1, 3) == "//%" then put(piece, blank(piece), piece)
            else put(blank(piece), piece, blank(piece)) end
        elseif two == "/*" then
            piece = text:match("^/%*.-%*/", i) or text:sub(i)
            put(blank(piece), piece, blank(piece))
        elseif one == '"' or one == "'" then
            local stop = i + 1
            while stop <= #text and text:sub(stop, stop) ~= one and text:sub(stop, stop) ~= "\n" do
                stop = stop + (text:sub(stop, stop) == "\\" and 2 or 1)
            end
            piece = text:sub(i, stop)
            put((piece:gsub("[^\n\"']", " ")), blank(piece), piece)
        else
            piece = text:match("^[^/\"']+", i) or one
            put(piece, blank(piece), piece)
        end
        i = i + #piece
    end
    return table.concat(code), table.concat(comment), table.concat(strings)
end

-- The same for a comment that runs from a mark to the end of its line.
local function split_marked(text, mark)
    local code, comment = {}, {}
    for line in text:gmatch("([^\n]*)\n") do
        local at, quote = nil, nil
        local i = 1
        while i <= #line and not at do
            local c = line:sub(i, i)
            if quote then
                if c == "\\" then i = i + 1 elseif c == quote then quote = nil end
            elseif c == '"' or c == "'" then
                quote = c
            elseif line:sub(i, i + #mark - 1) == mark then
                at = i
            end
            i = i + 1
        end
        code[#code + 1] = at and line:sub(1, at - 1) or line
        comment[#comment + 1] = at and line:sub(at) or ""
    end
    local joined = table.concat(code, "\n") .. "\n"
    return joined, table.concat(comment, "\n") .. "\n", joined
end

local function lines_of(text)
    local lines = {}
    for line in text:gmatch("([^\n]*)\n") do lines[#lines + 1] = line end
    return lines
end

local function read_file(root, path)
    local handle = assert(io.open(root .. "/" .. path, "rb"))
    local text = handle:read("a")
    handle:close()
    if text:sub(-1) ~= "\n" then text = text .. "\n" end
    local file = { path = path, name = path:match("[^/]+$"), kind = kind_of(path) }
    file.top = path:match("^([^/]+)/") or ""
    file.lines = lines_of(text)
    local code, comment, strings
    if file.kind == "c" then
        code, comment, strings = split_c(text)
    else
        code, comment, strings = split_marked(text, file.kind == "lua" and "--" or "#")
    end
    file.code, file.comment, file.strings = lines_of(code), lines_of(comment), lines_of(strings)
    return file
end

-- FINDINGS AND WAIVERS

local function report(file, line, rule, ...)
    local text = (file.lines[line] or ""):match(waiver_pattern)
    if text == rule then
        file.used = file.used or {}
        file.used[line] = true
        return
    end
    findings[#findings + 1] = ("%s:%d: %s: %s"):format(file.path, line, rule, string.format(...))
end

local function warn(file, line, rule, ...)
    if (file.lines[line] or ""):match(waiver_pattern) == rule then
        file.used = file.used or {}
        file.used[line] = true
        return
    end
    warnings[#warnings + 1] = ("%s:%d: warning: %s: %s"):format(file.path, line, rule,
                                                              string.format(...))
end

-- Calls found(line, word) where the pattern occurs in the lines as a whole word.
local function each_word(lines, pattern, found)
    for number, line in ipairs(lines) do
        for word in line:gmatch("%f[%w_]" .. pattern) do found(number, word) end
    end
end

-- RULES OF ONE FILE: rules[name] = function(file); `order` is the order in which they run.

local rules, order, about = {}, {}, {}

local function rule(name, text, check)
    rules[name], about[name] = check, text
    order[#order + 1] = name
end

rule("ascii", "only ASCII", function(file)
    for n, line in ipairs(file.lines) do
        local at = line:find("[^\32-\126\t]")
        if at then report(file, n, "ascii", "byte 0x%02x in column %d", line:byte(at), at) end
    end
end)

rule("tab", "no tabs", function(file)
    for n, line in ipairs(file.lines) do
        if line:find("\t", 1, true) then report(file, n, "tab", "a tab") end
    end
end)

rule("trailing-space", "no space at a line's end", function(file)
    for n, line in ipairs(file.lines) do
        if line:find("%s$") then report(file, n, "trailing-space", "space at the end") end
    end
end)

rule("columns", "100 columns", function(file)
    for n, line in ipairs(file.lines) do
        if #line > line_columns_max then
            report(file, n, "columns", "%d columns, at most %d", #line, line_columns_max)
        end
    end
end)

rule("opening", "a file opens with: name -- purpose", function(file)
    local n = (file.lines[1] or ""):sub(1, 2) == "#!" and 2 or 1
    local name = (file.lines[n] or ""):match("^%A*(%S+) %-%- %S") or
        (file.lines[n] or ""):match("^%S+ (%S+) %-%- %S") or ""
    -- A name may leave out its extension; .ci/run is named by its path.
    local stem = file.name:match("^(.-)%.%w+$") or file.name
    if name ~= file.name and name ~= stem and name ~= file.path then
        report(file, n, "opening", "must be '%s -- purpose'", file.name)
    end
end)

rule("function-length", "a function fits 70 lines", function(file)
    local open, closing
    for n, line in ipairs(file.code) do
        if file.kind == "c" then
            if line:find("^%S.*{%s*$") or line:find("^{%s*$") then
                open = not file.lines[n]:find('extern "C"', 1, true) and n or nil
            end
            closing = line:find("^}%s*$")
        elseif file.kind == "lua" then
            local begins = line:find("^%w.*%f[%w]function%f[%W]") or line:find("^function%f[%W]")
            if begins and not line:find("%f[%w]end%f[%W]") then open = n end
            closing = line:find("^end%f[^%w_]")
        end
        if closing and open then
            local count = n - open + 1
            if count > function_lines_max then
                report(file, open, "function-length", "%d lines, at most %d", count,
                       function_lines_max)
            end
            open = nil
        end
    end
end)

rule("pure", "gen/ is pure: no pairs, next, os, io, random numbers", function(file)
    if file.top ~= "gen" then return end
    local banned = { "pairs%s*%(", "next%s*%(", "os%.", "io%.", "math%.random" }
    for _, pattern in ipairs(banned) do
        each_word(file.code, pattern, function(n, word)
            report(file, n, "pure", "'%s'", word)
        end)
    end
end)

-- Names that are not ours to choose.
local foreign_words = {
    blockIdx = true, blockDim = true, O_NONBLOCK = true, EWOULDBLOCK = true, SIG_BLOCK = true,
    SIG_UNBLOCK = true,
}

rule("banned-word", "the word for a cta, a page or a group at once", function(file)
    if file.top ~= "runtime" and file.top ~= "templates" then return end
    for n, line in ipairs(file.code) do
        for word in line:gmatch("[%a_][%w_]*") do
            if word:lower():find("blo" .. "ck") and not foreign_words[word] then
                report(file, n, "banned-word", "'%s': write cta, page or group", word)
            end
        end
    end
end)

-- The one file of the library that may name each of these; "no file" for none.
local owners = {
    { "printf", "no file" }, { "puts", "no file" }, { "abort", "no file" }, { "exit", "no file" },
    { "setlocale", "no file" }, { "fprintf", "kvl_base.h" }, { "_exit", "kvl_compile.h" },
    { "malloc", "kvl_base.h" }, { "calloc", "kvl_base.h" }, { "realloc", "kvl_base.h" },
    { "getenv", "kvl_context.h" },
}

rule("owner", "output, memory and environment belong to one file each", function(file)
    if file.top ~= "runtime" then return end
    for _, pair in ipairs(owners) do
        local word, owner = pair[1], pair[2]
        each_word(file.code, word .. "%s*%(", function(n)
            if file.name ~= owner then
                report(file, n, "owner", "'%s' belongs to %s", word, owner)
            end
        end)
    end
end)

local function named_only_in(name, text, patterns, owner)
    rule(name, text, function(file)
        if (file.top ~= "runtime" and file.top ~= "include") or file.name == owner then return end
        for _, pattern in ipairs(patterns) do
            each_word(file.code, pattern, function(n, word)
                report(file, n, name, "'%s' outside %s", word, owner)
            end)
        end
    end)
end

named_only_in("driver-names", "cu* and nvrtc* only in kvl_driver.h",
              { "cu%u[%w_]*", "nvrtc%u[%w_]*" }, "kvl_driver.h")
named_only_in("lua-names", "lua_* and luaL_* only in kvl_lua.h",
              { "lua_[%w_]+", "luaL_[%w_]+" }, "kvl_lua.h")

rule("leftover", "no notes to self, no code that is switched off", function(file)
    for n, line in ipairs(file.lines) do
        for _, word in ipairs({ "TO" .. "DO", "FIX" .. "ME" }) do
            if line:find("%f[%w]" .. word .. "%f[%W]") then report(file, n, "leftover", word) end
        end
        if line:find("^%s*#%s*if%s+0%f[%D]") then
            report(file, n, "leftover", "code that is off")
        end
    end
end)

rule("history", "comments say what is (warns)", function(file)
    for _, word in ipairs({ "now", "new", "previously" }) do
        each_word(file.comment, word .. "%f[%W]", function(n)
            warn(file, n, "history", "'%s' in a comment", word)
        end)
    end
end)

rule("glued", "$( ) is a whole token", function(file)
    if file.top ~= "templates" then return end
    for n, line in ipairs(file.code) do
        if not line:find("^%s*//%%") then
            for before, after in line:gmatch("()%$%b()()") do
                if line:sub(before - 1, before - 1):find("[%w_]") and before > 1 or
                    line:sub(after, after):find("[%w_]") then
                    report(file, n, "glued", "'%s' touches a name: put the whole name inside",
                           line:sub(before, after - 1))
                end
            end
        end
    end
end)

-- RULES OF THE TREE

local tree_rules = {}

local function tree_rule(name, text, check)
    about[name] = text
    order[#order + 1] = name
    tree_rules[#tree_rules + 1] = check
end

tree_rule("codec-name", "no codec's name outside gen/codecs, tests and users' text", function(files)
    local names, raw = {}, {}
    for _, file in ipairs(files) do
        local part = file.path:match("^gen/parts/([^/]+)%.lua$")
        if part and table.concat(file.lines, " "):find("raw%s*=") then raw[part] = true end
    end
    -- A codec that is one number format has the format's name: f16 is a type too.
    for _, file in ipairs(files) do
        local codec = file.path:match("^gen/codecs/([^/]+)%.lua$")
        if codec and not raw[codec] then names[#names + 1] = codec end
    end
    for _, file in ipairs(files) do
        local inside = file.top == "runtime" or file.top == "templates" or file.top == "gen"
        if inside and not file.path:find("^gen/codecs/") then
            for n, line in ipairs(file.lines) do
                for word in line:lower():gmatch("[%w_]+") do
                    for _, name in ipairs(names) do
                        if word == name then report(file, n, "codec-name", "'%s'", name) end
                    end
                end
            end
        end
    end
end)

local function included_names(file)
    local names = {}
    for n, line in ipairs(file.lines) do
        local name = line:match('^%s*#%s*include%s*["<]([^">]+)[">]')
        if name then names[#names + 1] = { name = name:match("[^/]+$"), line = n } end
    end
    return names
end

tree_rule("direction", "examples, tools -> include -> runtime; nothing sees tests", function(files)
    local top_of = {}
    for _, file in ipairs(files) do top_of[file.name] = file.top end
    local allowed = {
        include = { runtime = true, include = true }, runtime = { runtime = true, include = true },
        templates = { templates = true, runtime = true },
        examples = { examples = true, include = true },
        tools = { tools = true, include = true, runtime = true, examples = true },
    }
    for _, file in ipairs(files) do
        for _, one in ipairs(included_names(file)) do
            local to = top_of[one.name]
            if allowed[file.top] and to and not allowed[file.top][to] then
                report(file, one.line, "direction", "%s/ must not see %s/", file.top, to)
            end
        end
    end
end)

tree_rule("unreached", "a header, module or template that nothing includes", function(files)
    local reached, words = { ["kvloom.h"] = true, ["main.lua"] = true }, {}
    for _, file in ipairs(files) do
        for _, one in ipairs(included_names(file)) do reached[one.name] = true end
        if file.top == "gen" or file.top == "tools" then
            for _, line in ipairs(file.strings) do
                for name in line:gmatch("require%s*%(?%s*[\"']([%w_.]+)") do
                    reached[name:match("[^.]+$") .. ".lua"] = true
                end
                for name in line:gmatch("[%w_.]+") do words[name] = true end
            end
        end
    end
    for _, file in ipairs(files) do
        local header = file.name:find("%.c?u?h$") ~= nil
        local module = file.path:find("^gen/[^/]+%.lua$") ~= nil
        local kernel = file.path:find("^templates/.+%.cu?$") ~= nil
        local stem = file.name:match("^(.-)%.%w+$") or file.name
        local seen = reached[file.name] or (file.top == "templates" and
            (words[file.name] or (kernel and words[stem])))
        if (header or module or kernel) and not seen then
            report(file, 1, "unreached", "nothing includes it")
        end
    end
end)

tree_rule("unique-name", "one name, one file, since amalgamation flattens the tree", function(files)
    local seen = {}
    for _, file in ipairs(files) do
        local exempt = file.name == "CMakeLists.txt" or file.path:find("^gen/codecs/")
        if not exempt and seen[file.name] then
            report(file, 1, "unique-name", "also %s", seen[file.name])
        end
        if not exempt then seen[file.name] = file.path end
    end
end)

about["unused-waiver"] = "a waiver that excuses nothing, or names no rule"
order[#order + 1] = "unused-waiver"

local function check_waivers(file)
    for n, line in ipairs(file.lines) do
        local name = line:match(waiver_pattern)
        if name and not (file.used and file.used[n]) then
            findings[#findings + 1] = ("%s:%d: unused-waiver: '%s' excuses nothing here"):format(
                file.path, n, name)
        end
    end
end

-- THE PROGRAM

local function read_options(words)
    local options, i = { root = "." }, 1
    while i <= #words do
        if words[i] == "--root" and words[i + 1] then
            options.root, i = words[i + 1], i + 1
        elseif words[i] == "--warnings" or words[i] == "--list" then
            options[words[i]:sub(3)] = true
        else
            io.stderr:write("usage: lint.lua [--root FOLDER] [--warnings] [--list]\n")
            os.exit(2)
        end
        i = i + 1
    end
    return options
end

local function main(options)
    if options.list then
        for _, name in ipairs(order) do print(("%-16s %s"):format(name, about[name])) end
        return 0
    end
    local files = {}
    for _, path in ipairs(list_files(options.root)) do
        if kind_of(path) then files[#files + 1] = read_file(options.root, path) end
    end
    for _, file in ipairs(files) do
        for _, name in ipairs(order) do
            if rules[name] then rules[name](file) end
        end
    end
    for _, check in ipairs(tree_rules) do check(files) end
    for _, file in ipairs(files) do check_waivers(file) end
    for _, text in ipairs(findings) do print(text) end
    if options.warnings then
        for _, text in ipairs(warnings) do print(text) end
    end
    print(("%d files, %d findings, %d warnings"):format(#files, #findings, #warnings))
    return #findings == 0 and 0 or 1
end

os.exit(main(read_options(arg)))
