-- plan.lua -- what a shape decides: refuse it, or choose the structure that serves it.

local refuse = require "refuse"

local plan = {}

-- Raises a refusal unless some structure serves the shape.
function plan.check(config)
    if config.num_heads < 1 or config.num_heads > 16 then
        refuse("num_heads = %d: must be 1 to 16", config.num_heads)
    end
    if config.page_size < 16 or config.page_size % 16 ~= 0 then
        refuse("page_size = %d: must be a multiple of 16", config.page_size)
    end
    if config.page_size > 65536 then
        refuse("page_size = %d: must be at most 65536", config.page_size)
    end
    if config.rows ~= "f16" and config.rows ~= "bf16" then
        refuse("rows = %s: must be f16 or bf16", config.rows)
    end
    if config.math and config.math ~= "int8" and config.math ~= "f32" then
        refuse("math = %s: must be int8 or f32", config.math)
    end
end

-- Splits num_heads into the fewest tiles of at most `most` heads, as even as they come.
local function split_heads(num_heads, most)
    local tiles, first = {}, 0
    local num_tiles = (num_heads + most - 1) // most
    for i = 1, num_tiles do
        local after = num_heads * i // num_tiles
        local heads = {}
        for head = first, after - 1 do heads[#heads + 1] = head end
        tiles[i] = heads
        first = after
    end
    return tiles
end

-- Returns the tiles of split_heads for integer sums of a side: heads; vectors, those that share its
-- loads; sums, the names of all sums, of which a head has a power of two in each vector so that
-- isa.chains are in flight; chain(head, k, n), the one that product k of vector n joins; pairs, the
-- key of a codec's pairs; sum(head, n), their total.  Where products of odd k have sums of their
-- own, these are 2^odd_shift too large.  Products of bytes have two sums a head, that of the high
-- ones last.
local function split_dots(num_heads, isa, codec)
    -- Levels of a path leave no registers, and lanes that take weights of their own share none.
    local vectors = (codec.path or codec.by_lane) and 1 or isa.abreast
    local tiles, bytes = {}, isa.dot == "bytes"
    local most = (bytes and isa.head_tile // 2 or isa.head_tile) // vectors
    for i, heads in ipairs(split_heads(num_heads, most)) do
        local tile, count = { heads = heads, vectors = vectors, sums = {} }, bytes and 2 or 1
        while count < 8 and 2 * count * #heads * vectors <= isa.chains do count = 2 * count end
        local up = count > 1 and not bytes and codec.odd_shift or 0
        tile.pairs = up > 0 and "high_pair" or "pair"
        function tile.chain(head, k, n) return ("sum_%d_%d_%d"):format(head, k % count, n) end
        function tile.sum(head, n)
            if bytes then
                return ("%s + (%s << 8)"):format(tile.chain(head, 0, n), tile.chain(head, 1, n))
            end
            local names = { [0] = {}, [1] = {} }
            for k = 0, count - 1 do table.insert(names[k % 2], tile.chain(head, k, n)) end
            local even, odd = table.concat(names[0], " + "), table.concat(names[1], " + ")
            if up > 0 then return ("%s + (%s >> %d)"):format(even, odd, up) end
            return odd == "" and even or even .. " + " .. odd
        end
        for n = 0, vectors - 1 do
            for _, head in ipairs(heads) do
                for k = 0, count - 1 do tile.sums[#tile.sums + 1] = tile.chain(head, k, n) end
            end
        end
        tiles[i] = tile
    end
    return tiles
end

-- The products of a cell's words join the sums of a tile, a function for each way in which weights
-- come; add(format, ...) takes the statements.  pair[n][k + 1] has words 2 k and 2 k + 1 of vector
-- n; weights of head h are at pairs + h * words / 2.
local ways = {}

-- A multiply-add repeats a pair of weights that is in memory.
function ways.memory(add, tile, pair, words)
    add("vp x;")
    for k = 0, 7 do
        add("x = %s;", pair[0][k + 1])
        for _, h in ipairs(tile.heads) do
            local sum = tile.chain(h, k, 0)
            add("%s = dot_at(pairs + %d, x, %s);", sum, h * words // 2 + k, sum)
        end
    end
end

-- A pair of weights is repeated in a register, for all vectors.
function ways.register(add, tile, pair, words)
    add("vi w;")
    for n = 0, tile.vectors - 1 do add("vp x_%d;", n) end
    for k = 0, 7 do
        for n = 0, tile.vectors - 1 do add("x_%d = %s;", n, pair[n][k + 1]) end
        for _, h in ipairs(tile.heads) do
            add("w = repeat_pair(pairs + %d);", h * words // 2 + k)
            for n = 0, tile.vectors - 1 do
                local sum = tile.chain(h, k, n)
                add("%s = dot_pairs(w, (vi)x_%d, %s);", sum, n, sum)
            end
        end
    end
end

-- Bytes of eight weights are in a register, for all vectors.
function ways.bytes(add, tile, pair, words)
    add("vi w;")
    for n = 0, tile.vectors - 1 do add("vp x_%d, y_%d;", n, n) end
    for k = 0, 7, 4 do
        for n = 0, tile.vectors - 1 do
            add("x_%d = fours_of(%s, %s);", n, pair[n][k + 1], pair[n][k + 2])
            add("y_%d = fours_of(%s, %s);", n, pair[n][k + 3], pair[n][k + 4])
        end
        for _, h in ipairs(tile.heads) do
            add("w = load_fours(pairs + %d);", h * words // 2 + k)
            for n = 0, tile.vectors - 1 do
                add("dot_fours(w, x_%d, y_%d, &%s, &%s);", n, n, tile.chain(h, 0, n),
                    tile.chain(h, 1, n))
            end
        end
    end
end

-- A lane takes its own from pairs[h / each * words / 2 + k], a vector with `each` heads, by
-- take_(h % each).
function ways.table(add, tile, pair, words, each)
    add("vi table;\nvp x;")
    for k = 0, 7 do
        add("x = %s;", pair[0][k + 1])
        for _, h in ipairs(tile.heads) do
            if h % each == 0 or h == tile.heads[1] then
                add("table = load_pairs(pairs[%d]);", h // each * words // 2 + k)
            end
            local sum = tile.chain(h, k, 0)
            add("%s = dot_pairs(take_lanes(table, take_%d), (vi)x, %s);", sum, h % each, sum)
        end
    end
end

-- Returns statements: the words of `cell`, the one of word16 and `lane`, times the weights at
-- `pairs` join the sums of a tile's heads, whose weights are words / 2 apart.  each: heads of a
-- table that lanes take weights from, or nil.
function plan.products(isa, tile, codec, word16, words, each)
    local pair, list = {}, {}
    local function add(format, ...) list[#list + 1] = format:format(...) end
    for n = 0, tile.vectors - 1 do
        local vector = codec.vector(n, word16)
        for _, read in ipairs(vector.reads) do
            add("const %s %s = %s;", read.type, read.name, read.expr)
        end
        pair[n] = vector[tile.pairs]
    end
    local way = each and "table" or isa.dot == "bytes" and "bytes"
        or isa.dot == "vnni" and isa.broadcast == 1 and "memory" or "register"
    ways[way](add, tile, pair, words, each)
    return list
end

-- How add_rows divides a row of values: vectors of channels, and tiles of the heads that have a sum
-- for each of them, so that `most` sums stay in registers.
local function split_outputs(num_heads, num_vectors, most)
    local vectors = num_vectors <= 7 and num_vectors % 4 ~= 0 and num_vectors or 4
    while num_vectors % vectors ~= 0 or vectors > most do vectors = vectors - 1 end
    return { vectors = vectors, tiles = split_heads(num_heads, most // vectors) }
end

-- The rows of a strip, whose scores become weights together, and those of one page among them: some
-- whole pages, or a part of one that divides it.  A strip and the one after it, scores and weights
-- stay in a first cache of 32 KB, or it is slower, however few instructions it has.
local function divide_rows(page_size, page_bytes)
    local most = 128
    if page_size <= most then
        local pages = most // page_size
        while pages > 1 and pages * page_bytes > 12 * 1024 do pages = pages - 1 end
        return pages * page_size, page_size
    end
    while page_size % most ~= 0 do most = most - 16 end
    return most, most
end

-- Whether a CTA keeps all copies of its queries in shared memory, beside a strip's scores.
local function shares_queries(config, copies)
    local floats = config.num_heads * (copies * config.k.head_dim + 128 + 8) + 128
    return 4 * floats <= 48 * 1024
end

-- The heads that one pass over a key serves: of queries in other memory few, for their registers.
local function few_heads(config)
    local most = config.num_heads < 4 and config.num_heads or 4
    while config.num_heads % most ~= 0 do most = most - 1 end
    return most
end

local function score_heads(config, copies)
    return shares_queries(config, copies) and config.num_heads or few_heads(config)
end

-- Returns head_tiles, lists of the heads that share one pass over a cell, and dot_tiles(codec); how
-- many rows of a window or a page are scored before their values are added, and how windows are
-- tiled; the room for 16-bit weights, whole vectors.
-- copies: of a query, in the bases that keys may be in.  page_bytes: of keys and values of a head.
function plan.attend(config, isa, copies, page_bytes)
    local strip_rows, part_rows = divide_rows(config.page_size, page_bytes)
    local two = 2 * isa.lanes
    return {
        head_tiles  = split_heads(config.num_heads, isa.head_tile),
        dot_tiles   = function(codec) return split_dots(config.num_heads, isa, codec) end,
        fold_tiles  = split_heads(config.num_heads, isa.head_tile // 2),
        window_rows = 64,              -- the rows are still in the first cache
        window_scores  = { tiles = split_heads(config.num_heads, isa.sums // 4) },
        window_outputs = split_outputs(config.num_heads, config.v.head_dim // isa.lanes, isa.sums),
        shares_queries = shares_queries(config, copies),
        score_heads = score_heads(config, copies),
        turn_heads = few_heads(config),
        strip_rows  = strip_rows,
        part_rows   = part_rows,
        strip_words = (strip_rows + two - 1) // two * two,
        score_error = 5e-4,            -- a root mean square that needs no second list of weights
        k_words     = (config.k.head_dim + two - 1) // two * two,
    }
end

return plan
