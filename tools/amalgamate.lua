-- amalgamate.lua -- make the single header: include/kvloom.h with every quoted include replaced.
--
--     lua5.4 tools/amalgamate.lua dist/kvloom.h include/kvloom.h runtime/*.h generated/*.h
--
-- Runs in the root of the tree.  The first argument is the output, the second the file to start
-- from; the others are all the files that includes may name, and each of them must be reached.  The
-- text of a file stands where it is included first; later includes of it become comments.
-- The output is written only if it changes, and by rename.

package.path = "gen/?.lua"

local function fail(...) error("amalgamate.lua: " .. string.format(...), 0) end

local function read(path)
    local file, message = io.open(path, "rb")
    if not file then fail("%s", message) end
    local text = file:read("a")
    file:close()
    return text
end

-- Returns what a command prints, "" if it cannot be run.
local function output_of(command)
    local pipe = io.popen(command .. " 2>/dev/null")
    if not pipe then return "" end
    local text = pipe:read("a")
    pipe:close()
    return text
end

local function base_name(path) return path:match("[^/]+$") end

-- Paths are written as in the tree: generated files by the folder's last part.
local function shown(path) return path:match("[^/]+/[^/]+$") or path end

local function index_of(paths)
    local by_name = {}
    for _, path in ipairs(paths) do
        local name = base_name(path)
        if by_name[name] then fail("%s and %s have one name", by_name[name], path) end
        by_name[name] = path
    end
    return by_name
end

-- Appends the text of `path` to `out`, includes replaced.  reached[name] is set for each file.
local function expand(path, by_name, reached, out)
    local text = read(path)
    if text:sub(-1) ~= "\n" then fail("%s: the last line has no newline", path) end
    reached[base_name(path)] = true
    local number = 0
    for line in text:gmatch("([^\n]*)\n") do
        number = number + 1
        local name = line:match('^%s*#%s*include%s*"([^"]+)"')
        if not name then
            out[#out + 1] = line
        elseif reached[base_name(name)] then
            out[#out + 1] = ('// #include "%s": above'):format(name)
        elseif by_name[base_name(name)] then
            local inner = by_name[base_name(name)]
            out[#out + 1] = "// ---- begin " .. shown(inner)
            expand(inner, by_name, reached, out)
            out[#out + 1] = "// ---- end " .. shown(inner)
        else
            fail('%s:%d: #include "%s": not among the files given', path, number, name)
        end
    end
end

local function check_all_reached(paths, reached)
    local missing = {}
    for _, path in ipairs(paths) do
        if not reached[base_name(path)] then missing[#missing + 1] = path end
    end
    if #missing > 0 then fail("never included: %s", table.concat(missing, ", ")) end
end

local function load_tables(folder)
    local tables = {}
    for path in output_of("ls " .. folder .. "/*.lua"):gmatch("[^\n]+") do
        tables[#tables + 1] = assert(loadfile(path, "t", {}))()
    end
    table.sort(tables, function(a, b) return a.name < b.name end)
    return tables
end

-- Bits an element of one side: its codes, and its group's scale and, where its levels have an
-- offset, zero; of a group that is the head, with 128 channels.
local function bits_of(side, parts)
    local meta_bytes = 0
    for _, part in ipairs(parts) do
        if part.stage == "meta" and part.name == side.meta then
            meta_bytes = part.scale_bytes + (side.levels == "symmetric" and 0 or part.zero_bytes)
        end
    end
    local group = side.group == "head" and 128 or side.group
    return side.bits + (group and 8 * meta_bytes / group or 0)
end

local function codec_lines()
    local parts, lines = load_tables("gen/parts"), {}
    for _, codec in ipairs(load_tables("gen/codecs")) do
        lines[#lines + 1] = ("//     %-12s %5.2f %5.2f   %s"):format(
            codec.name, bits_of(codec.key, parts), bits_of(codec.value, parts), codec.text)
    end
    return lines
end

-- Returns the lines that say what this copy was made from.
local function banner(main_text)
    local version = main_text:match('#define KVLOOM_VERSION "([^"]+)"')
        or fail("no KVLOOM_VERSION in the header")
    local id = output_of("git rev-parse --short=12 HEAD"):match("^%x+") or "none"
    local changed = {}
    for line in output_of("git status --porcelain -- include runtime gen templates tools")
        :gmatch("[^\n]+") do
        changed[#changed + 1] = line:sub(4)
    end
    local out = {
        "// kvloom.h -- kvloom " .. version .. " as a single file.  Generated; edit the sources.",
        "//",
        "// Made by tools/amalgamate.lua from git id " .. id .. ".",
    }
    if #changed > 0 then out[#out + 1] = "// With local changes in:" end
    for _, path in ipairs(changed) do out[#out + 1] = "//     " .. path end
    out[#out + 1] = "// Presets, with bits an element of keys and of values in pages:"
    for _, line in ipairs(codec_lines()) do out[#out + 1] = line end
    out[#out + 1] = "//"
    return out
end

local function write_if_changed(path, text)
    local file = io.open(path, "rb")
    local old = file and file:read("a")
    if file then file:close() end
    if old == text then return end
    local temporary = path .. ".tmp"
    local out, message = io.open(temporary, "wb")
    if not out then fail("%s", message) end
    out:write(text)
    if not out:close() then fail("%s: cannot be written", temporary) end
    assert(os.rename(temporary, path))
end

local function main(target, start, ...)
    local paths = { ... }
    if not start then fail("usage: amalgamate.lua OUTPUT START FILE...") end
    local out = banner(read(start))
    local reached = {}
    expand(start, index_of(paths), reached, out)
    check_all_reached(paths, reached)
    write_if_changed(target, table.concat(out, "\n") .. "\n")
end

local ok, message = pcall(main, ...)
if not ok then
    io.stderr:write(message, "\n")
    os.exit(1)
end
