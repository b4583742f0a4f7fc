-- tensor.lua -- attention over pages by tensor cores: what it serves, and its kernel's numbers.
--
-- mma.sync m16n8k16: query heads by 16 channels by 8 keys, or up to 4 heads the other way round,
-- and 16 channels of values by 16 tokens by 8 heads.  Codes stay in the bits where the page has
-- them: a code at bit b of a half is the f16 number code 2^(b - 24), below the least normal one.
-- What a page has in a lane's words and what a fragment wants of a lane agree, since the order of
-- channels in a sum, of tokens in another and of the outputs is free (docs/cuda.md draws it).
--
-- A warp works on 32 tokens at a time.  Of the lane 4 g + t, with g = 4 a + 2 b + e:
--     keys     columns g, or rows g, of fragment f = 2 i + h = 0 .. 3 are the tokens
--              16 a + 8 b + 2 j + e of the 32, j = f XOR a; of a lane's word, of 16 channels
--              64 y + 16 t ..., a product takes two pairs of channels
--     values   with t = 2 a + b: columns are the pairs j of tokens 16 a + 8 b + 2 j + (0, 1);
--              rows are the channels 32 x + 4 g + (0, 1), then (2, 3)
-- f XOR a instead of f spreads the lanes of a load over all banks.
--
-- Keys per token have sums of their own for each group of channels, which meet the scale of the
-- token there.  What a product adds up is then channels of one group: of groups of 64 n the 16 of
-- each lane as above, else 8 of each, 32 y + 8 t ..., half of what a cell has of a token.

local tensor = {}

local rows = 32                                     -- tokens of a step
local warps = 4
local shared_bytes = 48 * 1024 - 16                 -- what a CTA has on every device, but flags

local function is_power(n) return n > 0 and n & (n - 1) == 0 end

-- Whether x > 0 has 11 significant bits, as an f16 has.
local function is_f16(x)
    while x % 1 ~= 0 do x = 2 * x end
    while x > 2047 and x % 2 == 0 do x = x / 2 end
    return x < 2048
end

-- The bits of x as f16, whose value it is, with an exponent that normal numbers have.
function tensor.f16(x)
    local sign, exponent = x < 0 and 0x8000 or 0, 15
    if x < 0 then x = -x end
    if x == 0 then return sign end
    while x >= 2 do x, exponent = x / 2, exponent + 1 end
    while x < 1 do x, exponent = x * 2, exponent - 1 end
    return sign | exponent << 10 | (x - 1) * 1024 | 0
end

-- How codes lie in the words of a lane: of pair j of a half of the pairs its word, the shift that
-- brings it to the low bits of the halves, and the bit that it is at then.
local function planes_of(bits)
    local p = { words = bits // 2, at = {} }
    for j = 0, 3 do p.at[j] = bits * j % 8 end
    return p
end

-- Whether an offset is stored in units of the scale, as what is subtracted from codes.
local function is_point(meta) return meta.offset == "-scale * zero" end

-- Whether metadata of one byte in steps, or f16 without flags, whose offset is stored as it is or
-- in units of the scale.
local function serves_meta(d, meta)
    if meta.scale_bytes == 1 then return meta.steps end
    return meta.scale_type == "f16" and d.copies == 1
        and (not d.has_zero or meta.offset == "zero" or is_point(meta))
end

-- Whether the parts of a side are those of a kernel by tensor cores.
local function serves_side(d)
    local meta = d.parts.meta
    return d.raw == "none" and not d.path and (d.bits == 2 or d.bits == 4)
        and d.head_dim % 64 == 0 and d.group_size % rows == 0
        and not d.adds and not d.parts.extra
        and not d.calibrated_book
        and not d.book and meta and serves_meta(d, meta)
end

-- Whether keys of these groups are served.  Beside sums of groups of half a span there are
-- registers for up to 4 heads on every device.
local function serves_keys(d, num_heads)
    if d.axis == "per_channel" then return is_power(d.group_size) end
    return d.copies == 1 and (d.group_size % 64 == 0 or num_heads <= 4)
end

-- The numbers of one side.  zero: in units of the scale, its code z is step z - half.
local function derive_side(d)
    local meta = d.parts.meta
    local p = planes_of(d.bits)
    local side = {
        bits = d.bits, words = p.words, at = p.at, cells = d.head_dim // 16,
        codes_bytes = rows * d.head_dim * d.bits // 8,
        bytes = meta.scale_bytes, scale_type = meta.scale_type,
        zero_type = d.has_zero and meta.zero_type or "none",
        packed = meta.packed or false, is_point = d.has_zero and is_point(meta),
        mask = ("0x%08xu"):format(((1 << d.bits) - 1) * 0x10001),
    }
    -- What is taken from each code: code_max / 2, or 2^(bits - 1) where levels are centered.
    local half = d.parts.levels.is_centered and 1 << d.bits - 1 or d.code_max / 2
    if d.has_zero and meta.zero_type == "f16" then  -- an offset
        side.step, side.two_steps, side.bias, side.half = side.is_point and -1 or 1, false, 0, 1
    elseif d.has_zero then
        local bias = meta.zero_type == "i8" and 1024 + 128 or 1024 + 8
        side.step = (1 << d.bits) / meta.steps
        side.two_steps = not is_f16(bias * side.step + half)
        side.bias, side.half = bias, half
    else
        side.step, side.two_steps, side.bias, side.half = 0, false, 0, half
    end
    return side
end

-- A literal of two f16 that are x.
local function pair(x) return ("0x%08xu"):format(tensor.f16(x) * 0x10001) end

-- What is added to zeros times `by` the step of a side.
local function bias_of(side, by)
    return pair(by * (-side.half - (side.two_steps and 0 or side.bias * side.step)))
end

-- Lanes that have one of `words` words in the last of several rounds; false where all do, or where
-- one round is enough, whose lanes may have a word twice.
local function lanes_left(words) return words > 32 and words % 32 ~= 0 and words % 32 end

-- Adds how keys meet queries: key_rows, the tokens that a group of keys takes or that are read
-- together; span, the channels that products of a lane and its three neighbours add up; and the
-- bytes of a warp's numbers, of keys per token for each pair of groups of channels scales of both
-- as f32, offsets, and what those lack for being f16, 32 tokens each.
local function add_keys(t, k)
    t.key_rows = t.by_token and rows or k.group_size
    t.span = t.by_token and k.group_size % 64 ~= 0 and 32 or 64
    t.spans = k.head_dim // t.span
    t.is_half = t.span == 32
    t.k.words = t.is_half and 1 or t.k.words
    if not t.by_token then
        t.k_numbers = k.head_dim
        t.k_rounds = (t.k_numbers + 127) // 128
        t.k_left = lanes_left(t.k_numbers // 4)
        t.k_numbers_bytes = 6 * t.k_numbers + 32
        t.pieces = { t.k.bytes * k.head_dim // 16, k.zero_bytes * k.head_dim // 16 }
        return
    end
    t.key_groups = k.head_dim // k.group_size
    t.key_pairs = (t.key_groups + 1) // 2
    t.k_rounds = (t.key_pairs * 16 + 31) // 32
    t.k_left = lanes_left(t.key_pairs * 16)
    t.k_numbers_bytes = 512 * t.key_pairs + 96
    t.sums = t.key_groups > 4 and 2 or 1             -- registers of a query's sums
    t.pieces = { t.k.bytes * t.key_groups * 2, k.zero_bytes * t.key_groups * 2 }
end

-- Returns what the kernel is made of, or false where the plain one serves.
function tensor.plan(config, sides)
    local k, v = sides[1], sides[2]
    if config.target ~= "cuda" or config.math == "f32" or config.num_stored == 1
       or config.page_size % rows ~= 0 or not serves_side(k) or not serves_side(v)
       or not serves_keys(k, config.num_heads) or v.axis ~= "per_token" then return false end
    local t = { k = derive_side(k), v = derive_side(v), rows = rows }
    t.by_token = k.axis == "per_token"               -- the groups of keys
    local scale_type = t.k.scale_type
    t.exact_scales = scale_type ~= "log4" and scale_type ~= "f16"        -- of four significant bits
    -- Queries are rows, 8 heads in two parts, of which the second takes what rounding leaves of the
    -- first times a scale; or columns where heads are few: too coarse for scales in f16.
    t.tall = config.num_heads > 4
    if not t.tall and not t.by_token and scale_type == "f16" then return false end
    -- Fragments of query heads.  Beside sums of groups there are registers for one: more heads read
    -- keys and values again, in a second pass.
    local tiles = t.tall and (config.num_heads + 7) // 8 or 1
    t.columns, t.passes = t.by_token and 1 or tiles, t.by_token and tiles or 1
    t.pass_heads = t.passes > 1 and 8 or config.num_heads
    t.parts, t.scores = t.tall and 2 or 1, t.tall and 8 or 4    -- of a lane and fragment
    add_keys(t, k)
    t.quads = 2 * t.parts * t.span // 64             -- 16 bytes of queries of a span
    t.pair, t.bias_of = pair, bias_of
    t.unit = t.by_token and "1.0f" or "0x1p21f"      -- of scores, in eighths
    t.outs = v.head_dim // 32
    t.value_groups = v.head_dim // v.group_size
    -- Metadata of a step, in pieces of 16 bytes: scales and zeros of keys, then of values.
    local v_pieces = t.value_groups * 2
    t.pieces[3], t.pieces[4] = t.v.bytes * v_pieces, v.zero_bytes * v_pieces
    t.meta_pieces = t.pieces[1] + t.pieces[2] + t.pieces[3] + t.pieces[4]
    t.stage_bytes = t.k.codes_bytes + t.v.codes_bytes + 32 + 16 * t.meta_pieces
    -- Scales and offsets of values as f16.
    t.v_numbers = t.value_groups * rows
    t.v_left = lanes_left(t.v_numbers // 4)
    t.numbers_bytes = t.k_numbers_bytes + 4 * t.v_numbers + 64
    -- Copies of values' codes, 32 pieces of 16 bytes each, go to places that are apart by less than
    -- a constant where cells begin within one (v_byte).
    t.v_tile = t.v.cells * 2 * v.bits
    t.v_apart = t.v_tile % 32 ~= 0
    t.v_copies = t.v_apart and t.v.codes_bytes // 512 or 1
    -- Fragments of the queries: in registers, or in shared memory where there are many.
    t.keeps_queries = k.copies == 1 and t.spans * t.columns * t.quads <= 8
    t.query_rows = t.tall and t.pass_heads or 8      -- of lanes, 4 each
    t.query_bytes = t.keeps_queries and 0 or k.copies * t.spans * t.quads * t.query_rows * 64
    t.stages = 4
    local function room() return warps * (t.stages * t.stage_bytes + t.numbers_bytes)
                                 + t.query_bytes end
    while t.stages > 2 and room() > shared_bytes do t.stages = t.stages - 1 end
    t.room = room()
    local merge = warps * 8 * t.columns * (v.head_dim + 6) * 4
    if t.room < merge then t.room = merge end
    return t.room <= shared_bytes and t
end

return tensor
