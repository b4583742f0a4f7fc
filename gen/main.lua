-- main.lua -- config -> program text: the one function that the library, tools and tests call.
--
-- Pure: equal configs and equal embedded texts give equal bytes, in any process and any locale.
-- The program of target host holds every kernel of one layer configuration; one of target cuda
-- holds one kernel, so that they compile side by side:
--
--     target       host (the default) or cuda
--     kernel       of target cuda: a name in gen/kernels.lua
--     isa          of target host: a name in gen/isa.lua
--     num_heads    query heads that share a KV head
--     num_stored   2, or 1: a value is a part of its key, by the keys' codec
--     value_dim    of target cuda, with num_stored 1: the channels of that part
--     page_size    tokens of a page
--     rows         f16 or bf16: the type of rows outside pages
--     math         int8: integer dot products or tensor cores where the shape allows (the
--                  default); f32: floats
--     k, v         bits, head_dim, group_size, a word for each stage, and <stage>_number

local codec    = require "codec"
local isas     = require "isa"
local kernels  = require "kernels"
local plan     = require "plan"
local refuse   = require "refuse"
local stages   = require "stages"
local template = require "template"
local tensor   = require "tensor"

local folders = { host = "templates/host/", cuda = "templates/cuda/" }
local embedded = {                                    -- includes from outside the folder
    ["kvl_args.h"] = "runtime/kvl_args.h",
    ["kvl_device_args.h"] = "runtime/kvl_device_args.h",
    ["formats.h"] = "templates/formats.h",
    ["books.h"] = "templates/books.h",
    ["widths.h"] = "templates/widths.h",
}

-- Returns the part of a stage's word, from gen/parts/<stage>_<word>.lua or gen/parts/<word>.lua,
-- loaded with an empty environment, since it is data.
local function load_part(side, stage, word, text_of)
    for _, name in ipairs { stage .. "_" .. word, word } do
        local path = "gen/parts/" .. name .. ".lua"
        local text = text_of(path)
        local part = text and assert(load(text, "@" .. path, "t", {}))()
        if part and part.stage == stage and part.name == word then return part end
    end
    refuse("%s.%s = %s: no such word", side, stage, word)
end

-- Returns the parts of a side by stage; a stage that is left out, or is structure, has none.  What
-- the model's weights do (place `folded`) is left out as well; a transform across heads, which the
-- runtime's is, is named so.
local function load_parts(side, c, text_of)
    local parts = {}
    for _, stage in ipairs(stages) do
        local word = c[stage.name] or stage.default
        if word ~= "none" and not stage.words then
            parts[stage.name] = load_part(side, stage.name, word, text_of)
        end
    end
    if parts.place and parts.place.folded then parts.transform = nil end
    if parts.transform and parts.transform.across then
        parts.across, parts.transform = parts.transform, nil
    end
    return parts
end

-- 0, 2, 4, ... of `count` numbers
local function even_numbers(count)
    local numbers = {}
    for i = 1, count do numbers[i] = 2 * i - 2 end
    return table.concat(numbers, ", ")
end

-- The partner of each lane in a butterfly of a stride, and a sign bit where it is subtracted from.
local function butterfly(lanes, stride)
    local partners, signs = {}, {}
    for lane = 0, lanes - 1 do
        partners[lane + 1] = lane ~ stride
        signs[lane + 1] = lane & stride ~= 0 and "-0x7fffffff - 1" or "0"
    end
    return table.concat(partners, ", "), table.concat(signs, ", ")
end

-- first, first + 1, ... of `count` numbers
local function counted(first, count)
    local numbers = {}
    for i = 1, count do numbers[i] = first + i - 1 end
    return table.concat(numbers, ", ")
end

local function repeated(item, count) return (item .. ", "):rep(count - 1) .. item end

-- Returns the folder of templates, the instruction set and the kernel that are asked for.
local function choose_target(config)
    local target = config.target or "host"
    local folder = folders[target] or refuse("target = %s: must be host or cuda", target)
    if target == "host" then
        local isa = isas[config.isa] or refuse("isa = %s: must be avx512, avx512bw, avxvnni, "
                                               .. "avx2, neondot, neon or portable",
                                               tostring(config.isa))
        return folder, isa, nil
    end
    local names = {}
    for i, kernel in ipairs(kernels) do
        if kernel.name == config.kernel then return folder, kernels.isa, kernel end
        names[i] = kernel.name
    end
    refuse("kernel = %s: must be one of %s", tostring(config.kernel), table.concat(names, ", "))
end

-- Returns the program's text.  `config` is a table of integers and strings; `text_of(path)` is the
-- embedded text of a file, or nil.
return function(config, text_of)
    local folder, isa, kernel = choose_target(config)
    plan.check(config)
    local sides = {}
    for i, side in ipairs { "k", "v" } do
        sides[i] = codec.derive(side, config, load_parts(side, config[side], text_of), isa)
    end
    local page_bytes = sides[1].layout.page_bytes + sides[2].layout.page_bytes
    local env = {
        config = config, isa = isa, sides = sides,
        plan = plan.attend(config, isa, sides[1].copies, page_bytes), kernel = kernel or "none",
        ipairs = ipairs, f32 = template.f32, repeated = repeated, butterfly = butterfly,
        dense_rows = 8, even_numbers = even_numbers(2 * isa.lanes), sqrt = math.sqrt,
        counted = counted, table_concat = table.concat, f16 = tensor.f16,
    }
    env.plan.tensor = tensor.plan(config, sides)
    env.products = plan.products

    -- What is included is rendered once, and once for each side between use_side(side) and
    -- use_side(nil): `codec` is then the side's codec, s "name" its own form of a name.
    local included, current, names = {}, "", env
    function env.use_side(side)
        current, names = side and side.side or "", env
        if not side then return end
        names = setmetatable({ codec = side }, { __index = env })
        function names.s(word) return side.side .. "_" .. word end
    end
    function env.include(name)
        local key = current .. " " .. name
        if included[key] then return "" end
        included[key] = true
        local path = embedded[name] or folder .. name
        local text = text_of(path) or error(path .. ": no such template")
        return template.render(path, text, names)
    end
    return env.include(kernel and "program.cu" or "program.c")
end
