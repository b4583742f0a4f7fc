-- test_generator.lua -- the generator is pure, refuses what it cannot serve, and tells bugs apart.
--
--     lua5.4 tests/test_generator.lua            (in the root of the tree)
--     lua5.4 tests/test_generator.lua --update   writes tests/golden/ again, for review
--
-- Runs gen/ in an environment that has what the library's Lua state has and nothing else.

local golden_path = "tests/golden/kivi-d64-h3-p64-avx2.c"
local cuda_golden_path = "tests/golden/kivi-d64-h3-p64-%s.cu"
local failures = 0

local function check(condition, format, ...)
    if condition then return end
    failures = failures + 1
    io.stderr:write("test_generator.lua: ", format:format(...), "\n")
end

local function read(path)
    local file = io.open(path, "rb")
    if not file then return nil end
    local text = file:read("a")
    file:close()
    return text
end

-- Returns require() of a fresh state; text_of(path) gives the modules' text.
local function new_require(text_of)
    local loaded, env = {}, {}
    for _, name in ipairs { "assert", "error", "ipairs", "load", "pcall", "select", "setmetatable",
                            "tonumber", "tostring", "type", "string", "table" } do
        env[name] = _G[name]
    end
    env.math = { type = math.type, sqrt = math.sqrt }
    function env.require(name)
        if loaded[name] == nil then
            local path = "gen/" .. name .. ".lua"
            loaded[name] = assert(load(assert(text_of(path), path), "@" .. path, "t", env))()
        end
        return loaded[name]
    end
    setmetatable(env, { __index = function(_, name)
        error("gen/ uses the global '" .. name .. "'", 2)
    end, __newindex = function(_, name) error("gen/ sets the global '" .. name .. "'", 2) end })
    return env.require
end

-- KIVI: keys per channel, values per token, 2 bits.
local function kivi()
    local function side(axis)
        return { bits = 2, head_dim = 64, group_size = 32, axis = axis, fit = "minmax",
                 levels = "affine", round = "nearest", meta = "8bit", place = "post_rope",
                 shift = "none", transform = "none", transform_number = 0, choose = "none",
                 extra = "none" }
    end
    return { isa = "avx2", num_heads = 3, page_size = 64, rows = "f16", k = side("per_channel"),
             v = side("per_token") }
end

-- Returns the words of tools/generate.lua for a configuration.
local function words_of(config, prefix)
    local words = {}
    for name, value in pairs(config) do
        if type(value) == "table" then words[#words + 1] = words_of(value, name .. ".")
        else words[#words + 1] = (prefix or "") .. name .. "=" .. value end
    end
    table.sort(words)
    return table.concat(words, " ")
end

local function run(command)
    local pipe = assert(io.popen(command))
    local text = pipe:read("a")
    pipe:close()
    return text
end

-- Breaks if a table is walked in hash order, or a number is spelled as the locale has it.
local function test_same_bytes(text)
    local words = words_of(kivi())
    for _ = 1, 2 do
        check(run("lua5.4 tools/generate.lua " .. words) == text, "another process: other bytes")
    end
    local set = [[lua5.4 -e 'if not (os.setlocale("de_DE.UTF-8") or os.setlocale("de_DE")) then ]]
        .. [[io.stderr:write("test_generator.lua: no locale with a comma: not tested\n") end' ]]
    check(run(set .. "tools/generate.lua " .. words) == text, "another locale: other bytes")
end

-- Breaks if a program's text changes without its golden file being reviewed.
local function test_golden(path, text)
    if arg[1] == "--update" then
        local file = assert(io.open(path, "wb"))
        file:write(text)
        file:close()
    end
    check(read(path) == text, "%s differs: review, then run with --update", path)
end

-- The same configuration for one kernel of target cuda.
local function kivi_cuda(kernel)
    local config = kivi()
    config.isa, config.target, config.kernel = nil, "cuda", kernel
    return config
end

-- Breaks if a kernel is not generated, is not the only one of its program, or includes a file.
local function test_cuda(generate, list)
    for _, kernel in ipairs(list) do
        local text = generate(kivi_cuda(kernel.name), read)
        local names = {}
        for name in text:gmatch("\nKERNEL ([%w_]+)%(") do names[#names + 1] = name end
        local wanted = kernel.by_side and ("k_%s v_%s"):format(kernel.name, kernel.name)
            or kernel.name
        check(table.concat(names, " ") == wanted, "%s: the program has the kernels %s", kernel.name,
              table.concat(names, " "))
        check(not text:find("\n#include \""), "%s: includes are left", kernel.name)
    end
    for _, kernel in ipairs { "k_encode_rows", "v_encode_rows", "attend_splits" } do
        test_golden(cuda_golden_path:format(kernel), generate(kivi_cuda(kernel), read))
    end
end

-- Each row: what is changed, its value, what the refusal says.
local refusals = {
    { "isa", "sse9", "isa = sse9: must be" },
    { "num_heads", 17, "num_heads = 17: must be 1 to 16" },
    { "num_heads", 0, "num_heads = 0" },
    { "page_size", 96 + 8, "page_size = 104: must be a multiple of 16" },
    { "rows", "f32", "rows = f32" },
    { "k.head_dim", 72, "k.head_dim = 72: must be 32 to 256 in steps of 16" },
    { "v.head_dim", 272, "v.head_dim = 272" },
    { "k.bits", 7, "k.bits = 7: must be one of 1, 2, 3" },
    { "k.bits", 16, "k.bits = 16" },
    { "k.group_size", 24, "k.group_size = 24: must divide page_size = 64" },
    { "v.group_size", 24, "v.group_size = 24: must divide head_dim = 64" },
    { "v.group_size", 0, "v.group_size = 0" },
    { "k.fit", "absmax", "k.fit = absmax: is for levels symmetric" },
    { "k.fit", "none", "k.fit = none" },
    { "k.meta", "none", "k.meta = none" },
    { "v.levels", "f16", "v.bits = 2: must be one of 16" },
    { "v.levels", "fp3", "v.levels = fp3: no such word" },
    { "v.meta", "f16/../f16", "no such word" },
    { "v.axis", "per_head", "v.axis = per_head" },
    { "v.shift", "median", "v.shift = median: no such word" },
    { "k.fit", "static", "k.fit = static, k.meta = 8bit: static goes with static" },
    { "k.extra", "sparse", "k.extra = sparse: needs groups along channels" },
    { "v.extra", "outliers", "v.extra = outliers: needs the head as a group of a token" },
    { "math", "f16", "math = f16: must be int8 or f32" },
    { "target", "opencl", "target = opencl: must be host or cuda" },
    { "target", "cuda", "kernel = nil: must be one of append_rows, k_encode_rows" },
}

-- Breaks if a refusal is raised as text, or what cannot be served is generated.
local function test_refusals(generate)
    for _, row in ipairs(refusals) do
        local config = kivi()
        local side, field = row[1]:match("^(.)%.(.*)$")
        if side then config[side][field] = row[2] else config[row[1]] = row[2] end
        local done, err = pcall(generate, config, read)
        check(not done and type(err) == "table" and err[1]:find(row[3], 1, true),
              "%s = %s: expected a refusal '%s', got %s", row[1], row[2], row[3],
              type(err) == "table" and tostring(err[1]) or tostring(err):sub(1, 120))
    end
    local transformed = kivi()
    transformed.v.transform, transformed.v.transform_number = "hadamard", 24
    local _, err = pcall(generate, transformed, read)
    check(type(err) == "table" and err[1]:find("hadamard24", 1, true), "hadamard24 is not refused")
end

-- Breaks if a bug of a template could pass for a refusal, or does not name the template's line.
local function test_bugs(generate)
    local broken = {
        { "int x = $(no_such_name);\n", "templates/host/config.h:1: unknown name 'no_such_name'" },
        { "int x;\n//% for\n", "templates/host/config.h:" },
        { "int x = $(1.5);\n", "float in a template" },
        { "int x;", "the last line has no newline" },
    }
    for _, one in ipairs(broken) do
        local _, err = pcall(generate, kivi(), function(path)
            if path == "templates/host/config.h" then return one[1] end
            return read(path)
        end)
        check(type(err) == "string" and err:find(one[2], 1, true), "expected a bug '%s', got %s",
              one[2], tostring(err))
    end
end

-- Breaks if statements, values, indents or line marks are rendered otherwise.
local function test_engine(template)
    local source = "a\n//% for _, n in ipairs(list) do\n  $(n .. \"_at\") = $(1);\n//% end\n"
        .. "  $(many)\nb\n"
    local text = template.render("t.c", source,
                                 { list = { "x", "y" }, ipairs = ipairs, many = "p\nq" })
    check(text == '#line 1 "t.c"\na\n#line 3 "t.c"\n  x_at = 1;\n#line 3 "t.c"\n  y_at = 1;\n'
          .. '#line 5 "t.c"\n  p\n  q\n#line 6 "t.c"\nb\n', "the engine's text is:\n%s", text)
    check(template.f32(0.5) == "0.5f" and template.f32(2.0) == "2.0f"
          and template.f32(1 / 3) == "0.333333333f", "f32 spells otherwise")
    check(not pcall(template.f32, 0 / 0), "f32 takes a value that is not a number")
end

-- Breaks if a shape that integers do not fit, or a wish for floats, is not met with floats.
local function test_math(generate)
    local rows = {
        { "int", "int" },
        { "float", "float", math = "f32" },
        { "float", "float", isa = "portable" },
        { "float", "float", isa = "neon" },
        { "int", "int", isa = "neondot" },
        { "int", "int", isa = "avx512bw" },
        { "int", "int", isa = "avxvnni" },
        { "float", "int", k_group = 20, page_size = 80 },
        { "int", "float", v_group = 8 },
    }
    for _, row in ipairs(rows) do
        local config = kivi()
        config.math, config.isa = row.math, row.isa or "avx512"
        config.page_size = row.page_size or config.page_size
        config.k.group_size = row.k_group or config.k.group_size
        config.v.group_size = row.v_group or config.v.group_size
        local wanted = ("// Scores are %s sums, outputs %s sums, for %s.\n"):format(
            row[1], row[2], config.isa)
        check(generate(config, read):find(wanted, 1, true), "expected '%s'", wanted)
    end
end

-- Breaks if gcc may take a function for pure and drop a call that writes through its arguments: it
-- is only noipa that keeps it from that.
local function test_calls_stay(text)
    local ours = text:match("#else\n#define NOINLINE ([^\n]*)\n#endif")
    check(ours == "__attribute__((noipa, unused))", "NOINLINE of gcc is %s", tostring(ours))
    local count = select(2, text:gsub("%(%(noinline", ""))
    check(count == 1, "%d uses of noinline: must be 1, of clang", count)
end

local require_gen = new_require(read)
local generate = require_gen("main")
local text = generate(kivi(), read)
check(generate(kivi(), read) == text, "the same state: other bytes")
check(new_require(read)("main")(kivi(), read) == text, "a fresh state: other bytes")
test_engine(require_gen("template"))
test_same_bytes(text)
test_golden(golden_path, text)
test_cuda(generate, require_gen("kernels"))
test_refusals(generate)
test_math(generate)
test_calls_stay(text)
test_bugs(generate)
if failures > 0 then os.exit(1) end
print("test_generator.lua: ok")
