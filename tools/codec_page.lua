-- codec_page.lua -- docs/codecs.md: every codec in one table, and a paragraph each.
--
--     lua5.4 tools/codec_page.lua [ACCURACY.md | BENCH.json ...] > docs/codecs.md  (in the root)
--     lua5.4 tools/codec_page.lua --list all|nothing|calibration|matrices          their names
--     lua5.4 tools/codec_page.lua --list own NEED            caches with windows of their own
--
-- What a codec is comes from gen/codecs/ and gen/parts/: its name, source, stages, bits, windows,
-- what it needs, and the comment that opens its file.  Accuracy comes from the page that
-- tools/accuracy.sh writes, speed from what kvloom-bench --json does; of several results of a codec
-- the last counts.  tools/codecs.sh runs the latter over all of them.

package.path = "gen/?.lua"
local layout = require "layout"
local stages = require "stages"

local head_dim = 64                    -- that bits of groups of a whole head are counted with

-- READING

local function read(path)
    local file = assert(io.open(path, "rb"))
    local text = file:read("a")
    file:close()
    return text
end

local function list(folder)
    local pipe, names = assert(io.popen("ls " .. folder .. "/*.lua")), {}
    for name in pipe:lines() do names[#names + 1] = name end
    pipe:close()
    return names
end

-- A JSON text as a Lua value; null is nil.
local function parse_json(text)
    local at, value = 1, nil
    local function next_char(pattern)
        at = text:find("%S", at) or #text + 1
        local found = text:match("^" .. pattern, at)
        if found then at = at + #found end
        return found
    end
    local function members(close, add)
        if next_char(close) then return end
        repeat add() until not next_char(",")
        if not next_char(close) then error("JSON: no " .. close .. " at " .. at, 0) end
    end
    local function string_of()
        local from = at
        repeat at = assert(text:find('["\\]', at), "JSON: a string has no end")
            local escaped = text:sub(at, at) == "\\"
            at = at + (escaped and 2 or 1)
        until not escaped
        return text:sub(from, at - 2)
    end
    function value()
        local result = {}
        if next_char("{") then
            members("}", function()
                next_char('"')
                local name = string_of()
                next_char(":")
                result[name] = value()
            end)
        elseif next_char("%[") then
            members("%]", function() result[#result + 1] = value() end)
        elseif next_char('"') then
            return string_of()
        else
            local word = next_char("[%w.+-]+")
            if not word then error("JSON: no value at " .. at, 0) end
            if word == "true" or word == "false" then return word == "true" end
            return tonumber(word)
        end
        return result
    end
    return value()
end

-- parts[stage][word]
local function load_parts()
    local parts = {}
    for _, path in ipairs(list "gen/parts") do
        local part = assert(loadfile(path, "t", {}))()
        parts[part.stage] = parts[part.stage] or {}
        parts[part.stage][part.name] = part
    end
    return parts
end

-- The comment that opens a file, as paragraphs; its first line without the name.
local function opening(path)
    local paragraphs, lines = {}, {}
    for line in read(path):gmatch("[^\n]*\n") do
        local text = line:match("^%-%- ?(.-)\n$")
        if not text then break end
        if text == "" then
            paragraphs[#paragraphs + 1], lines = lines, {}
        else
            lines[#lines + 1] = text
        end
    end
    if #lines > 0 then paragraphs[#paragraphs + 1] = lines end
    return paragraphs
end

-- DERIVING

local function part_of(parts, stage, word)
    local of = parts[stage] or {}
    return of[word] or of[(word:gsub("%d+$", ""))]
end

-- A side's stages that are not the default, in write order.
local function composition(s)
    local words = { ("b%d"):format(s.bits) }
    if s.group then words[2] = "g" .. s.group end
    for _, stage in ipairs(stages) do
        local word = s[stage.name]
        if word and word ~= stage.default then words[#words + 1] = word end
    end
    return table.concat(words, " ")
end

local function bits_of(parts, s)
    local meta, levels = s.meta and part_of(parts, "meta", s.meta), s.levels or "affine"
    local part = s.extra and part_of(parts, "extra", s.extra)
    local number = part and (tonumber(s.extra:match("%d+$")) or part.number_usual)
    local rows, bytes = layout.extra(part, number, head_dim, s.group)
    local extra = 8 * bytes / rows / head_dim
    if not s.group or not meta then return s.bits + extra end
    local zero = part_of(parts, "levels", levels).stores_zero and meta.zero_bytes or 0
    local group = s.group == "head" and head_dim or s.group
    if part and part.splits then                   -- a bit of the first set; two groups a token
        local strong, most = number or 16, head_dim // 4
        while not number and 2 * strong <= most do strong = 2 * strong end
        return s.bits + strong / head_dim + 2 * 8 * (meta.scale_bytes + zero) / head_dim
    end
    return s.bits + 8 * (meta.scale_bytes + zero) / group + extra
end

local function needs(parts, codec)
    local found, order = {}, {}
    local function add(text)
        if not found[text] then order[#order + 1] = text end
        found[text] = true
    end
    for _, name in ipairs { "key", "value" } do
        for _, stage in ipairs(stages) do
            local word = codec[name][stage.name]
            local part = word and part_of(parts, stage.name, word)
            local is_file = stage.name == "transform" and word == "file"
            if is_file then add "matrices" end
            if part and part.tables and not is_file then add "calibration" end
            if part and part.folded then add "folded weights" end
            if part and part.unrotated then add "RoPE told" end
        end
    end
    if (codec.key.bits == "auto") or codec.sizes then add "calibration" end
    return #order > 0 and table.concat(order, ", ") or "nothing"
end

local function windows_of(codec)
    local w = codec.windows or {}
    local named = w.kept and (", %d named"):format(w.kept) or ""
    return ("%d / %d"):format(w.sink or 0, w.recent or 0) .. named
end

-- PRINTING

local function cell(format, value) return value and format:format(value) or "" end

local function print_table(parts, codecs, measured)
    print("| codec | source | keys | values | bits k, v | windows | needs | KL | top-1 % | KL, own "
          .. "| encode ns | read x f16 |")
    print("| --- | --- | --- | --- | --- | --- | --- | ---: | ---: | ---: | ---: | ---: |")
    for _, codec in ipairs(codecs) do
        local m = measured[codec.name] or {}
        local row = {
            ("[`%s`](#%s)"):format(codec.name, codec.name), codec.source or "",
            "`" .. composition(codec.key) .. "`", "`" .. composition(codec.value) .. "`",
            ("%.4g, %.4g"):format(bits_of(parts, codec.key), bits_of(parts, codec.value)),
            windows_of(codec), needs(parts, codec), cell("%.3g", m.common_kl_x1000),
            cell("%.2f", m.common_top1), cell("%.3g", m.kl_x1000),
            cell("%.0f", m.encode_ns), cell("%.2f", m.ratio_f16) }
        print("| " .. table.concat(row, " | ") .. " |")
    end
end

local function print_paragraphs(codecs)
    for _, codec in ipairs(codecs) do
        print(("\n### %s\n"):format(codec.name))
        for i, lines in ipairs(codec.paragraphs) do
            if i == 1 then lines[1] = lines[1]:gsub("^%S+ %-%- ", "") end
            local is_code = lines[1]:find("^ ")
            for n, line in ipairs(lines) do
                lines[n] = is_code and "    " .. line:gsub("^ +", "") or line
            end
            local text = table.concat(lines, "\n")
            if i == 1 then text = text:sub(1, 1):upper() .. text:sub(2) end
            print(text .. "\n")
        end
    end
end

local common_windows = { sink = 4, recent = 128 }

-- The windows of a spec: those that it names, else its codec's.
local function windows_of_spec(spec, codec)
    local own = codec and codec.windows or {}
    return { sink = tonumber(spec:match "sink=(%d+)" or own.sink or 0),
             recent = tonumber(spec:match "recent=(%d+)" or own.recent or 0) }
end

local function same_windows(a, b)
    return a.sink == (b.sink or 0) and a.recent == (b.recent or 0)
end

-- A cache's figures count for a codec as it is, with its own windows, the common ones, or both
-- where they are the same; speed is of its own.
local function add_figures(codecs, measured, spec, figures)
    local other = spec:gsub("^[^:]*:?", ""):gsub("sink=%d+,?", ""):gsub("recent=%d+,?", "")
    for _, codec in ipairs(codecs) do
        if codec.name == spec:match "^[^:]*" and other == "" then
            local m, windows = measured[codec.name] or {}, windows_of_spec(spec, codec)
            if same_windows(windows, common_windows) then
                m.common_kl_x1000 = figures.kl_x1000 or m.common_kl_x1000
                m.common_top1 = figures.top1 or m.common_top1
            end
            if same_windows(windows, codec.windows or {}) then
                for _, field in ipairs { "kl_x1000", "encode_ns", "ratio_f16" } do
                    m[field] = figures[field] or m[field]
                end
            end
            measured[codec.name] = m
        end
    end
end

local function cells_of(line)
    local cells = {}
    for cell in line:gmatch "|%s*([^|\n]-)%s*%f[|]" do cells[#cells + 1] = cell end
    return cells
end

-- The page of tools/accuracy.sh, but for sections that name a size of their own.
local function add_accuracy(codecs, measured, header, path)
    local text, kl, top1 = read(path), nil, nil
    local model, size = text:match "\n| model | (.-) |\n", text:match "\n| size | (.-) |\n"
    local counts = true
    for line in text:gmatch "[^\n]*" do
        if line:find "^#" then counts = not line:find "windows of" end
        if not line:find "^|" then kl, top1 = nil, nil end
        local cells = counts and line:find "^|" and cells_of(line) or {}
        if cells[1] == "`cache`" then
            for i, name in ipairs(cells) do
                if name == "KL x1000" then kl = i elseif name == "top-1 %" then top1 = i end
            end
        elseif kl and top1 and cells[1] and cells[1]:find "^`[%w_-]+:?" then
            local figures = { kl_x1000 = tonumber(cells[kl]:match "^%S+"),
                              top1 = tonumber(cells[top1]) }
            add_figures(codecs, measured, cells[1]:match "`(.-)`", figures)
        end
    end
    if not model or not size then error(path .. ": is not a page of tools/accuracy.sh", 0) end
    header.kl = ("KL (times 1000) and top-1: %s,\n%s,\nagainst the f16 cache, with the first 4 and "
        .. "the newest 128 rows in 16 bits; `KL, own` with the\nwindows of the codec "
        .. "(docs/accuracy.md)."):format(model, size)
end

local function add_speed(codecs, measured, header, path)
    local json = parse_json(read(path))
    for _, one in ipairs(json.results or {}) do add_figures(codecs, measured, one.spec, one) end
    local r = json.results and json.results[1]
    if not r then error(path .. ": has no results of kvloom-bench", 0) end
    header.speed = ("Speed: head dim %d, %d KV heads of %d query heads, %d rows, %d threads: "
        .. "what\nkvloom-bench calls encode ns, and how many times faster than f16 a step is."
        ):format(r.head_dim, r.kv_heads, r.q_heads, r.rows, r.threads)
end

local function main(paths)
    local parts, codecs, measured, header = load_parts(), {}, {}, {}
    for _, path in ipairs(list "gen/codecs") do
        local codec = assert(loadfile(path, "t", {}))()
        codec.paragraphs = opening(path)
        codecs[#codecs + 1] = codec
    end
    table.sort(codecs, function(a, b) return a.name < b.name end)
    if paths[1] == "--list" then
        for _, codec in ipairs(codecs) do
            local need = needs(parts, codec)
            local kind = need:match "matrices" or need:match "calibration" or "nothing"
            local w = codec.windows or {}
            if paths[2] == "all" or paths[2] == kind then print(codec.name) end
            if paths[2] == "own" and paths[3] == kind and not same_windows(common_windows, w)
                and not same_windows({ sink = 0, recent = 0 }, w) then
                print(("%s:sink=%d,recent=%d"):format(codec.name, w.sink or 0, w.recent or 0))
            end
        end
        return
    end
    for _, path in ipairs(paths) do
        local add = path:find "%.md$" and add_accuracy or add_speed
        add(codecs, measured, header, path)
    end
    print("# The codecs\n")
    print("Written by `tools/codec_page.lua` from `gen/codecs/`, `gen/parts/` and measurements:\n"
          .. "`sh tools/codecs.sh` makes it anew.  Stages and words are listed by\n"
          .. "`kvloom-eval --list-caches` and explained in the files of `gen/parts/`.\n")
    print(("Bits of a value in pages count metadata, at a head dim of %d where a group is a head;\n"
           .. "without the rows in 16 bits, whose numbers are those of windows: first / newest,\n"
           .. "and those that the engine may name (`kept=`).\n"
           ):format(head_dim))
    print("Every codec and every word has kernels on the host and on a CUDA device.  A device\n"
          .. "refuses what its shared memory has no room for, and says how much it would take:\n"
          .. "`round=feedback` of long groups or rows (docs/cuda.md).\n")
    for _, line in ipairs { header.kl or "", header.speed or "" } do
        if line ~= "" then print(line .. "\n") end
    end
    print_table(parts, codecs, measured)
    print("\n## What they do")
    print_paragraphs(codecs)
end

main(arg)
