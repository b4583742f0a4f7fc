-- codec.lua -- check one side's codec and derive what the templates need.
--
-- Pure arithmetic on a side's configuration and its parts.  Nothing here knows a part by name.

local codebooks = require "codebooks"
local layout = require "layout"
local paths  = require "paths"
local refuse = require "refuse"
local stages = require "stages"
local template = require "template"

local codec = {}

local no_meta = { scale_bytes = 0, zero_bytes = 0 }

local function check_listed(side, field, allowed, value)
    for _, one in ipairs(allowed) do
        if value == one then return value end
    end
    refuse("%s.%s = %s: must be one of %s", side, field, value, table.concat(allowed, ", "))
end

-- The name of what a meta part does with what a fit finds.
local function store_of(levels, fit)
    if levels.stores_zero then return fit.unrounded and "store_plain" or "store_affine" end
    local clips = fit.clips or codebooks.has(levels)
    return clips and "store_clipped" or "store_symmetric"
end

-- Raises a refusal unless what is stored beside codes, or sets of channels, go with the rest.
local function check_extra(side, c, parts)
    local levels, fit, extra = parts.levels, parts.fit, parts.extra
    if extra.sparse and (levels.raw or c.axis ~= "per_token" or parts.transform or parts.choose
                         or parts.round.feedback or parts.round.path or fit.clips_rows) then
        refuse("%s.extra = %s: needs groups along channels of the window, rounded one by one", side,
               c.extra)
    end
    local has_tables = levels.calibrated or levels.widths or parts.choose or parts.across
        or parts.transform and parts.transform.dense or parts.meta and parts.meta.base
    if extra.splits and (levels.raw or levels.points or not fit or fit.clips_rows or has_tables
                         or c.axis ~= "per_token" or c.group_size ~= c.head_dim
                         or parts.round.feedback or parts.round.path) then
        refuse("%s.extra = %s: needs the head as a group of a token, values rounded one by one and "
               .. "no tables of channels", side, c.extra)
    end
    if not extra.sparse and not extra.signs and not extra.splits
       and (c.axis ~= "per_channel" or levels.raw or parts.choose and parts.choose.flags) then
        refuse("%s.extra = %s: needs groups along tokens, in one basis", side, c.extra)
    end
    if extra.promotes and (not levels.stores_zero or fit.name ~= "minmax"
                           or parts.round.name ~= "nearest" or c.extra_number >= c.head_dim
                           or c.head_dim > 256) then
        refuse("%s.extra = %s%d: needs levels affine, fit minmax, the nearest and more channels",
               side, c.extra, c.extra_number)
    end
end

-- Raises a refusal unless the parts of a side can be combined.
local function check_parts(side, c, parts)
    local levels, fit, meta = parts.levels, parts.fit, parts.meta
    check_listed(side, "bits", levels.bits, c.bits)
    if levels.empty and not (parts.extra and parts.extra.signs) then
        refuse("%s.levels = %s: needs a sketch beside them", side, c.levels)
    end
    if parts.extra then check_extra(side, c, parts) end
    if levels.raw then
        if fit then refuse("%s.fit = %s: levels %s have no scale", side, c.fit, c.levels) end
        if meta then refuse("%s.meta = %s: levels %s have none", side, c.meta, c.levels) end
        return
    end
    if not fit then refuse("%s.fit = none: levels %s need one", side, c.levels) end
    if not meta then refuse("%s.meta = none: levels %s need one", side, c.levels) end
    if (fit.static or false) ~= (meta.constant or false) then
        refuse("%s.fit = %s, %s.meta = %s: static goes with static", side, c.fit, side, c.meta)
    end
    local has_book = codebooks.has(levels)
    if fit.levels and fit.levels ~= c.levels and not (fit.levels == "book" and has_book) then
        refuse("%s.fit = %s: is for levels %s", side, c.fit, fit.levels)
    end
    if levels.widths and (fit.name ~= "norm" or c.axis ~= "per_token" or parts.transform
                          or parts.choose or meta.base) then
        refuse("%s.levels = %s: needs fit norm, groups along channels of the window, and metadata "
               .. "without a base", side, c.levels)
    end
    if levels.points and (fit.name ~= "norm" or c.axis ~= "per_token" or c.group_size % 2 == 1) then
        refuse("%s.levels = %s: needs fit norm and groups of an even number of channels", side,
               c.levels)
    end
    if has_book and not parts.round.of_books then
        refuse("%s.round = %s: levels %s take the nearest", side, c.round, c.levels)
    end
    local stored = store_of(levels, fit)
    if not meta.constant and not meta[stored] then
        refuse("%s.meta = %s: cannot store what fit %s finds", side, c.meta, c.fit)
    end
    if meta.levels and meta.levels ~= c.levels then
        refuse("%s.meta = %s: is for levels %s", side, c.meta, meta.levels)
    end
    if parts.round.levels and parts.round.levels ~= c.levels then
        refuse("%s.round = %s: is for levels %s", side, c.round, parts.round.levels)
    end
    if c.bits < (fit.min_bits or 1) then
        refuse("%s.bits = %d: fit %s needs %d", side, c.bits, c.fit, fit.min_bits)
    end
    if fit.signed and not meta.signed then
        refuse("%s.meta = %s: cannot store the sign of fit %s", side, c.meta, c.fit)
    end
end

-- The piece of a transform in a set of channels: its own where the word has no number.
local function set_piece(c, count)
    local piece = c.transform_number or 0
    return piece > 0 and piece or count & -count
end

local function check_shape(side, config, parts)
    local c, page_size = config[side], config.page_size
    local least, most = config.in_set and 16 or 32, config.num_stored == 1 and 576 or 256
    if c.head_dim < least or c.head_dim > most or c.head_dim % 16 ~= 0 then
        refuse("%s.head_dim = %d: must be %d to %d in steps of 16", side, c.head_dim, least, most)
    end
    check_listed(side, "axis", { "per_token", "per_channel" }, c.axis)
    if not parts.levels.raw then
        local along = c.axis == "per_token" and c.head_dim or page_size
        if c.group_size < 1 or along % c.group_size ~= 0 then
            refuse("%s.group_size = %d: must divide %s = %d", side, c.group_size,
                   c.axis == "per_token" and "head_dim" or "page_size", along)
        end
        if c.axis == "per_channel" and c.group_size * c.head_dim > 65536 then
            refuse("%s.group_size = %d: the rows of a group must fit 256 KB of stack", side,
                   c.group_size)
        end
    end
    local fit = parts.fit
    if fit and fit.number and (c.fit_number < fit.number_least or c.fit_number > fit.number_most)
    then
        refuse("%s.fit = %s%d: the %s must be %d to %d", side, c.fit, c.fit_number, fit.number,
               fit.number_least, fit.number_most)
    end
    local piece = parts.extra and parts.extra.splits and set_piece(c, c.head_dim)
        or c.transform_number
    local is_piece = piece >= 2 and piece & (piece - 1) == 0 and c.head_dim % piece == 0
    if parts.transform and parts.transform.number and not is_piece then
        refuse("%s.transform = %s%d: must be a power of two that divides head_dim = %d",
               side, c.transform, piece, c.head_dim)
    end
end

-- Raises a refusal unless the words around a choice can serve it.
local function check_choice(side, c, parts)
    local piece = c.choose_number or 0
    if parts.transform or not parts.score or parts.levels.raw or not parts.levels.stores_zero then
        refuse("%s.choose = %s: needs a score, levels affine and no transform", side, c.choose)
    end
    if piece < 16 or piece & (piece - 1) ~= 0 or c.head_dim % piece ~= 0
       or c.axis == "per_token" and piece % c.group_size ~= 0 then
        refuse("%s.choose = %s%d: must be a power of two from 16 that divides head_dim = %d, and "
               .. "groups of a token divide it", side, c.choose, piece, c.head_dim)
    end
    if not parts.choose.flags then return end
    if not parts.meta.free_sign or parts.fit.name ~= "minmax" or c.group_size % 16 ~= 0 then
        refuse("%s.choose = %s: needs scales with a free sign, fit minmax and groups of 16 n",
               side, c.choose)
    end
end

local function shifted(item, right)
    if right == 0 then return item end
    return right > 0 and ("%s >> %d"):format(item, right) or ("%s << %d"):format(item, -right)
end

-- Where code i of a lane is in a plane: number of the word, and the lowest bit in it.
local function place(plane, i)
    local k, each = i // 2, 16 // plane.width
    return k // each, i % 2 * 16 + k % each * plane.width
end

-- Word k of a plane, of the lanes from `lane` on, in C.
local function load_expr(plane, k)
    if plane.width == 1 then return ("load_narrow(cell + %d, lane)"):format(plane.at) end
    return ("load_u32(cell + %d + lane * 4)"):format(plane.at + 64 * k)
end

-- The words of a cell: name, at (bytes), narrow (two lanes share it), load, and pack: the word as
-- an expression of the 16 codes q[] of one lane.
local function derive_words(planes)
    local words = {}
    for _, plane in ipairs(planes) do
        local mask = (1 << plane.width) - 1
        for k = 0, (plane.width + 1) // 2 - 1 do
            local terms = {}
            for i = 0, 15 do
                local word, bit = place(plane, i)
                local part = ("(%s & %du)"):format(shifted(("(uint32_t)q[%d]"):format(i),
                                                           plane.low), mask)
                if word == k then terms[#terms + 1] = shifted(part, -bit) end
            end
            words[#words + 1] = { name = ("word_%d_%d"):format(plane.low, k),
                                  at = plane.at + 64 * k, narrow = plane.width == 1,
                                  load = load_expr(plane, k), pack = table.concat(terms, " | ") }
        end
    end
    return words
end

-- Returns code i of every lane as an expression of the words.  A mask is left out where the shift
-- alone leaves the plane's bits.
local function code_expr(planes, i)
    local terms = {}
    for p, plane in ipairs(planes) do
        local k, bit = place(plane, i)
        local word = ("word_%d_%d"):format(plane.low, k)
        local alone = plane.low == 0 and bit + plane.width == 32
        terms[p] = alone and shifted(word, bit) or ("(%s & %du)"):format(
            shifted(word, bit - plane.low), ((1 << plane.width) - 1) << plane.low)
    end
    return table.concat(terms, " | ")
end

-- Returns codes 2 k and 2 k + 1 of every lane as pairs of 16-bit numbers, times 2^up: an expression
-- of the words, whose halves are shifted apart.
local function pair_expr(planes, k, up)
    local terms = {}
    for p, plane in ipairs(planes) do
        local number, bit = place(plane, 2 * k)
        local word, low = ("(vp)word_%d_%d"):format(plane.low, number), plane.low + up
        local alone = low == 0 and bit + plane.width == 16
        terms[p] = alone and shifted(word, bit) or ("(%s & %d)"):format(
            shifted(word, bit - low), ((1 << plane.width) - 1) << low)
    end
    return table.concat(terms, " | ")
end

-- Bits that pairs of odd k may stay up, so that a shift serves two pairs: their sums are apart, and
-- stay below 2^31.
local function odd_shift(planes, bits, head_dim)
    local words = head_dim > 128 and head_dim or 128                  -- of a list
    local most = (1 << 2 * bits) * 32767 * (words // 2)
    return #planes == 1 and bits <= 4 and most < 1 << 31 and bits or 0
end

-- The most groups that `lanes` neighbouring lanes meet.
local function groups_met(group_size, extent, lanes)
    local most = 1
    for first = 0, extent - lanes, lanes do
        local met = (first + lanes - 1) // group_size - first // group_size + 1
        if met > most then most = met end
    end
    return most
end

-- Where scales enter: "lanes": into the weights, since all lanes of a cell share a word's scale;
-- "words": into a cell's sum, since its words share a lane's; "values": into each value; "none".
local function choose_fold(raw, along_lanes, group_size)
    if raw then return "none" end
    if group_size % layout.cell ~= 0 then return "values" end
    return along_lanes and "lanes" or "words"
end

-- "int": sums of products of codes and 16-bit weights; "float" where the instruction set has none
-- that is faster, where each value has a scale of its own, and where it is asked for.  Products of
-- bytes want codes that are signed bytes, and the same weights for all lanes.
local function choose_math(fold, math, isa, level_bits, flagged)
    local fits = fold == "lanes" or fold == "words"
    if isa.dot == "bytes" and (level_bits > 7 or flagged and fold == "words") then fits = false end
    return fits and isa.dot ~= "none" and math ~= "f32" and "int" or "float"
end

-- How the offsets of groups along lanes differ from code_max / 2 scales: "none" where they do not;
-- "steps" where they do by a stored byte times scale and zero_step; else "float".
local function choose_raised(has_zero, meta, level_bits)
    if not has_zero then return "none" end
    return meta.steps and meta.zero_type == "i8" and level_bits <= 6 and "steps" or "float"
end

-- Rows that share words, groups or what is beside codes with no others: what a CTA encodes.
local function unit_rows(d)
    local unit, extra_rows = layout.cell, d.layout.extra_rows
    local group_rows = d.raw == "none" and d.axis == "per_channel" and d.group_size or 1
    while unit % group_rows ~= 0 or unit % extra_rows ~= 0 do unit = unit + layout.cell end
    return unit
end

-- 0, 1, ... count - 1
local function number_list(count)
    local numbers = {}
    for i = 1, count do numbers[i] = i - 1 end
    return table.concat(numbers, ", ")
end

-- Returns the arguments of store_grid: a fit's statistics, item i of their arrays, and parameters.
local function list_stats(fit)
    local names, items, parameters = {}, {}, {}
    for i, stat in ipairs(fit and fit.stats or {}) do
        names[i], items[i] = stat.name, stat.name .. "s[i]"
        parameters[i] = "float " .. stat.name
    end
    return table.concat(names, ", "), table.concat(items, ", "), table.concat(parameters, ", ")
end

-- The place, among the sorted magnitudes of a row, of the bound that its values are clipped to.
local function clip_rank(c)
    local rank = c.head_dim * c.fit_number // 100
    return rank < c.head_dim and rank or c.head_dim - 1
end

-- Returns the calibrated tables of a side's record, in stage order: name, at (floats), count.  Each
-- begins at a multiple of 16 floats.  A symbol of a shape is `dim`, head_dim; `number`, the word's
-- own; or `choices`, the pieces of that number and the head.
local function derive_tables(c, parts)
    local tables, at = {}, 0
    for _, stage in ipairs(stages) do
        local part = parts[stage.name] or stage.name == "transform" and parts.across
        for _, one in ipairs(part and part.tables or {}) do
            local number = c[stage.name .. "_number"] or 0
            local count, sizes = 1, { dim = c.head_dim, number = number,
                                      choices = number > 0 and c.head_dim // number + 1 or 0 }
            if not one.of_layer and (not one.only or one.only == c.choose) then
                for _, size in ipairs(one.shape) do count = count * (sizes[size] or size) end
                tables[#tables + 1] = { name = one.name, at = at, count = count }
                at = (at + count + 15) // 16 * 16
            end
        end
    end
    return tables, at
end

-- Whether queries do not meet the codes of keys: the runtime scores restored rows, or what is
-- stored where there are no codes.  A device restores sketches of two parts too: queries that are
-- turned for a unit serve its rows alone.
local function is_restored(parts, target)
    local extra = parts.extra or {}
    return parts.place and parts.place.unrotated or extra.sparse or extra.promotes
        or extra.apart and target == "cuda" or parts.levels.calibrated or parts.levels.widths
        or parts.levels.empty
end

-- 1 where a random sign is minus, else 0.
local function is_minus(i)
    local h = i * 2654435761 & 0xffffffff
    h = (h ~ h >> 15) * 2246822519 & 0xffffffff
    return (h ~ h >> 13) & 1
end

-- The signs of a random rotation (gen/parts/signed_hadamard.lua), as numbers of C.
local function random_signs(dim)
    local signs = {}
    for i = 1, dim do signs[i] = is_minus(i) == 1 and "-1.0f" or "1.0f" end
    return signs
end

-- Adds what a device needs of sketches (gen/parts/sketch.lua): flips, of each round a word for 32
-- channels, whose bits are set where signs are minus; the gain.
local function add_sketches(d, c, extra)
    local dim, words = c.head_dim, {}
    d.sketches, d.sketch_bytes = extra and extra.signs and c.extra_number or 0, 0
    if d.sketches == 0 then return end
    d.kept_apart = extra.apart
    d.sketch_bytes = 4 * 4 * (dim + 1) + (extra.apart and 8 * dim or 0) + 16
    for round = 1, 3 * d.sketches do
        for first = 0, dim - 1, 32 do
            local word = 0
            for lane = 0, 31 do word = word | is_minus(first + lane + 1 + 1024 * round) << lane end
            words[#words + 1] = ("0x%08xu"):format(word)
        end
    end
    d.flips, d.gain = words, 1.5707963267948966 / dim
    for i = 1, dim // 2 - 1 do d.gain = d.gain * (1 + 0.5 / i) end
end

-- Whether sums of a side's products are sums of floats on every instruction set.
local function needs_floats(parts, is_key, target)
    return is_key and is_restored(parts, target) or parts.meta and parts.meta.constant
        or codebooks.has(parts.levels) or parts.extra and parts.extra.splits
end

-- Adds what a device needs of rows that are not of their own heads alone: of heads that are mixed,
-- as many as `across_most`, the sizes of Hadamards; and the bytes of shared memory that their rows
-- take when they are loaded.
local function add_others(d, c, parts, target)
    d.predicted = parts.shift and parts.shift.predicts and target == "cuda"
    d.across, d.across_most = parts.across ~= nil and target == "cuda", 1
    d.load_bytes = d.predicted and 8 * 16 * 32 or 0
    if not d.across then return end
    while 2 * d.across_most <= c.transform_number do d.across_most = 2 * d.across_most end
    d.rotations = { c.head_dim & -c.head_dim }
    d.load_bytes = 4 * d.across_most * c.head_dim + 8 * c.head_dim
end

-- Adds what leads from a row to the numbers that are fitted, and the tables of all parts.
local function add_bases(d, c, parts, config)
    d.is_split, d.in_set = parts.extra and parts.extra.splits or false, config.in_set or false
    d.piece = parts.transform and parts.transform.number and not d.is_split and c.transform_number
        or 0
    -- On the host a shift that depends on a row's position, or on other rows, is the runtime's:
    -- kernels see rows without it.
    d.by_position = parts.shift and parts.shift.by_position
    -- Keys that are turned when they are read, have slots or a calibrated book: the runtime scores
    -- them, restored.
    d.restored = d.is_key and is_restored(parts, config.target)
    -- The runtime adds what keys have by their positions, or in a sketch, to their scores.
    d.adds = d.restored or d.by_position or parts.extra and parts.extra.signs
    d.norms = parts.extra and parts.extra.row_bytes or false
    add_sketches(d, c, parts.extra)
    d.promoted = parts.extra and parts.extra.promotes and c.extra_number or 0
    d.unrotated = parts.place and parts.place.unrotated
    d.slots = parts.extra and parts.extra.sparse and c.extra_number or 0
    d.calibrated_book = parts.levels.calibrated or false
    local runtimes = d.by_position or parts.shift and parts.shift.predicts
    d.shift = not runtimes and parts.shift or nil
    d.tables, d.record_floats = derive_tables(c, parts)
    d.is_plain = not d.shift and not parts.transform      -- rows are stored as they come
    -- Queries have one copy of their own: the one in the basis of all rows.
    d.turns = d.piece > 0 or d.dense ~= false or d.base ~= false or c.choose == "fixed"
        or d.is_split
    -- Channels of an output: what is in another basis is turned whole.
    d.outputs = d.in_keys and not d.turns and config.value_dim or c.head_dim
    -- Whether a row in its basis may have values that a sum of 256 must not meet.
    local rotates = parts.transform or parts.choose
    d.clamps = d.shift ~= nil or rotates ~= nil and config.rows == "bf16"
    d.clamp_bound = d.dense and "0x1p18f" or "0x1p119f"
    -- Who chooses bases; whether the page has flags; the pieces and the part of the head that are
    -- rotated; the sizes of all Hadamards.
    d.chooses, d.flagged = parts.choose and c.choose or "none", parts.choose and parts.choose.flags
    d.by_lane = d.flagged and not d.along_lanes       -- lanes of a cell differ in their bases
    d.copies = parts.choose and parts.choose.copies or 1
    -- Where a device has queries turned for sketches, after their copies; false: nowhere.
    d.sketched_at = d.sketches > 0 and not d.restored and config.target == "cuda"
        and (d.copies > 2 and d.copies or 2) * c.head_dim
    -- On a device queries of such keys stay as they are.
    d.bias = d.shift and not d.restored
    if config.target == "cuda" and (d.restored or parts.shift and parts.shift.predicts) then
        d.turns, d.copies = false, 1
    end
    d.choice_piece, d.head_piece = c.choose_number, c.head_dim & -c.head_dim
    d.rotations = d.piece > 0 and { d.piece } or {}
    add_others(d, c, parts, config.target)
    if parts.choose then
        d.rotations = { d.choice_piece }
        if d.head_piece ~= d.choice_piece then d.rotations[2] = d.head_piece end
        d.trial_rows = c.axis == "per_token" and 16 or c.group_size
        d.score_number = c.score_number
        d.score_rows = parts.score.weighs and c.score_number or c.head_dim
    end
    -- Where a table begins in the record of a head.
    d.signs = parts.transform and parts.transform.signs and not d.is_split
        and table.concat(random_signs(c.head_dim), ", ") or false
    d.back = (d.signs or d.is_split) and "turn_back" or "transform"    -- out of the basis
    function d.table_at(name)
        for _, one in ipairs(d.tables) do
            if one.name == name then return one.at end
        end
        error("no table " .. name)
    end
end

local shared_bytes = 48 * 1024                      -- what a CTA has on every device
local cta_threads = 128

-- How a device finds paths: a team of lanes has a group, a lane one state of it or two.  Of each
-- step which way led into each state is kept, a bit a state; then the level and bit 0 of the code.
local function add_teams(d)
    local states = d.path.states
    d.team = states < 32 and states or 32
    d.states_held = states // d.team
    d.step_type = ("uint%d_t"):format(states < 8 and 8 or states)
    d.step_bytes = (states < 8 and 8 or states) // 8
end

-- What encoding of paths keeps in shared memory: what the teams of path_warps warps have; and of
-- groups along tokens the values of `slice` channels, as many as there is room for.
local function add_paths(d, c)
    local along, dim = c.axis == "per_channel", c.head_dim
    local rows = 4 * (along and 8 or 16) * (dim + 1) + d.sketch_bytes + d.load_bytes
    d.path_warps = 8
    repeat
        d.path_warps = d.path_warps // 2
        local teams = d.path_warps * 32 // d.team
        local left = shared_bytes - rows - teams * 2 * c.group_size * d.step_bytes
        d.slice = (left // (4 * c.group_size) - 1) // 16 * 16
        if dim < d.slice then d.slice = dim end
    until d.path_warps == 1 or left >= 0 and (not along or d.slice >= 16)
end

-- The same for feedback, beside `bytes` of columns.  Along channels `way_teams` tokens at a time
-- have errors and codes of all ways, and all tokens a group's sums of the errors before it.
local function add_ways(d, c, bytes)
    local room, n = shared_bytes - bytes, c.group_size
    d.path_warps = 1
    if c.axis == "per_channel" then return bytes + 32 // d.team * 2 * n * d.step_bytes end
    d.way_teams = cta_threads // d.team
    local function way_bytes() return 4 * n * 16 + d.way_teams * n * d.path.states * 5 end
    while d.way_teams > 32 // d.team and way_bytes() > room do d.way_teams = d.way_teams // 2 end
    local search = d.searches and 32 // d.team * 2 * n * d.step_bytes or 0
    return bytes + (way_bytes() > search and way_bytes() or search)
end

-- What rounding with feedback keeps in shared memory on a device: `room` rows as columns, with
-- their errors where there is room for them; else errors are computed from codes.
local function add_columns(d, side, config)
    local c = config[side]
    local along, dim = c.axis == "per_channel", c.head_dim
    d.room = along and c.group_size or 16
    local function most(a, b) return a > b and a or b end
    d.column_floats = most(dim * (d.room + 1), 16 * (dim + 1))
    d.tile_floats = most(8 * (dim + 1), dim * d.room // 4 + 1)
    local grids = along and 2 * dim + 3 * d.room or 3 * dim // c.group_size * d.room
    local bytes = 4 * (d.column_floats + d.tile_floats + grids) + 2 * dim + d.sketch_bytes
        + d.load_bytes
    if d.path then bytes = add_ways(d, c, bytes) end
    d.keeps_errors = bytes + 4 * d.column_floats <= shared_bytes
    if config.target == "cuda" and bytes > shared_bytes then
        refuse("%s.round = %s%d: %d rows of %d channels take %d bytes of shared memory, and a "
               .. "device has %d", side, c.round, c.round_number, d.room, dim, bytes, shared_bytes)
    end
end

-- Levels of a plane: of keys, whose words are channels, of two codes of a lane; of values of those
-- of two lanes.
local function pair_codes(d)
    for i = 0, 15 do
        d.code[i + 1] = d.is_key and ("((%s) | (%s) << %d) + %du"):format(
            d.stored[i // 2 * 2 + 1], d.stored[i // 2 * 2 + 2], d.bits, i % 2 << 2 * d.bits)
            or ("%s_numbers(%s)"):format(d.side, d.stored[i + 1])
    end
end

-- Adds how levels, what scales are multiplied with, come out of a cell: `code` and `pair` are
-- expressions of what reads() names, from `cell` and `lane`; `stored` are codes as they lie there.
-- reads is told what the cell's word16 is called.
local function add_codes(d, planes)
    local path = d.path
    d.words, d.stored, d.code, d.pair = derive_words(planes), {}, {}, {}
    for i = 0, 15 do
        d.stored[i + 1] = code_expr(planes, i)
        d.code[i + 1] = path and path.code(i) or d.stored[i + 1]
    end
    if d.plane then pair_codes(d) end
    local meta = d.parts.meta
    d.raised = choose_raised(d.has_zero, meta, d.level_bits)
    d.zero_step = d.raised == "steps" and 2.0 ^ d.level_bits / meta.steps or 0.0
    d.odd_shift, d.high_pair = path and 0 or odd_shift(planes, d.bits, d.head_dim), {}
    for k = 0, 7 do
        d.pair[k + 1] = path and path.pair(k) or pair_expr(planes, k, 0)
        d.high_pair[k + 1] = k % 2 == 1 and not path and pair_expr(planes, k, d.odd_shift)
            or d.pair[k + 1]
    end
    function d.reads(word16)
        local list = {}
        if path then
            list[1] = { type = "unsigned char*", name = "before",
                        expr = ("%s_before(page, lane16, %s)"):format(d.side, word16) }
            for _, read in ipairs(path.reads) do
                list[#list + 1] = { type = "vu", name = read.name, expr = read.expr }
            end
            return list
        end
        for i, word in ipairs(d.words) do
            list[i] = { type = "vu", name = word.name, expr = word.load }
        end
        return list
    end
    -- What reads() and the pairs of the vector of lanes that is n after that of `lane` are: their
    -- names end in _n.
    function d.vector(n, word16)
        local own, names = d.reads(word16), { lane = ("(lane + %d * lanes)"):format(n) }
        local function renamed(text)
            return n == 0 and text or (text:gsub("[%a_][%w_]*", names))
        end
        local out = { reads = {}, pair = {}, high_pair = {} }
        for _, read in ipairs(own) do names[read.name] = ("%s_%d"):format(read.name, n) end
        for i, read in ipairs(own) do
            out.reads[i] = { type = read.type, name = renamed(read.name),
                             expr = renamed(read.expr) }
        end
        for k = 1, 8 do
            out.pair[k], out.high_pair[k] = renamed(d.pair[k]), renamed(d.high_pair[k])
        end
        return out
    end
    -- A group's grid from its values, `stride` apart from `at` on, and its statistics; of a path
    -- its codes and levels too.
    function d.fit_call(page, group, at, stride, stats)
        if d.refit then
            return ("%s_refit_grid(%s, %s, %s, %s, %s)"):format(d.side, page, group, at, stride,
                                                                stats)
        end
        if not path and not d.searches then
            return ("%s_store_grid(%s, %s, %s)"):format(d.side, page, group, stats)
        end
        return ("%s_%s(%s, %s, %s, %s, %s%s)"):format(
            d.side, path and "fit_path" or "search_grid", page, group, at, stride, stats,
            path and ", codes, levels" or "")
    end
end

-- A list of numbers of C, six a line.
local function wrapped(items)
    local rows = {}
    for i = 1, #items, 6 do
        rows[#rows + 1] = table.concat(items, ", ", i, i + 5 < #items and i + 5 or #items)
    end
    return table.concat(rows, ",\n")
end

-- Adds what codes mean: d.book, or false, and level(code), an expression of a vector, or on a
-- device of a number; and the share of a range that a fit keeps.
local function add_levels(d, c, parts, isa)
    d.shrink = parts.fit and parts.fit.shrinks and c.fit_number / 100 or false
    d.book = codebooks.derive(parts.levels, d.bits)
    d.plane = d.book and d.book.plane or false
    d.apart = parts.round.path or d.plane              -- levels are made of several codes
    d.widths = parts.levels.widths and codebooks.widths(parts.levels) or false
    for _, name in ipairs(d.widths and { "values", "bounds" } or {}) do
        local items = d.widths[name]
        d.widths["num_" .. name] = #items
        for i, x in ipairs(items) do items[i] = template.f32(x) end
        d.widths[name] = wrapped(items)
    end
    d.refit = parts.fit and parts.fit.refit or false
    d.store = not parts.levels.raw and store_of(parts.levels, parts.fit) or false
    if parts.meta and parts.meta.constant then d.store = "store_symmetric" end
    function d.level(code)
        return d.book and ("%s_level(%s)"):format(d.side, code) or ("to_float(%s)"):format(code)
    end
    if not d.book then return end
    -- Up to 16 levels are looked up, but floats of a device; of few bounds all are compared.
    d.looks_up = d.bits <= 4 and not (isa.lanes == 1 and d.book.float)
    d.counts_bounds = #d.book.bounds < 16
    local num, values, halves = #d.book.values, {}, {}
    d.num_levels, d.permutes = num, d.looks_up and isa.vector == "x86" and num <= 2 * isa.lanes
    local room = isa.lanes > 1 and num < 16 and 16 or num
    for i = 1, room do values[i] = template.f32(d.book.values[i] or 0.0) end
    for i, x in ipairs(d.plane and d.book.bounds or {}) do halves[i] = template.f32(x) end
    d.book_room, d.book_values, d.book_halves = room, wrapped(values), wrapped(halves)
end

-- Adds the sets of channels that have a codec each, which is derived like a side's: first (its
-- channel in the order of the sets), at (bytes in the side of a page).  A side that is not split is
-- the one set of itself.
local function add_sets(d, side, config, parts, isa)
    d.sets, d.first, d.at = { d }, 0, 0
    if not d.is_split then return end
    local c, first, at = config[side], 0, 0
    local kinds = { { name = "outliers", title = "outlying ", bits = c.bits + 1,
                      count = c.extra_number },
                    { name = "others", title = "other ", bits = c.bits,
                      count = c.head_dim - c.extra_number } }
    for i, kind in ipairs(kinds) do
        local of, of_parts = {}, {}
        for _, stage in ipairs(stages) do
            local number = stage.name .. "_number"
            of[stage.name], of[number] = c[stage.name], c[number]
            of_parts[stage.name] = parts[stage.name]
        end
        of_parts.place, of_parts.shift, of_parts.extra = nil, nil, nil
        of.bits, of.head_dim, of.group_size = kind.bits, kind.count, kind.count
        of.transform_number = set_piece(c, kind.count)
        local own = setmetatable({ in_set = true, math = "f32", [side] = of }, { __index = config })
        local set = codec.derive(side, own, of_parts, isa)
        set.side, set.title = side .. "_" .. kind.name, kind.title .. d.title
        set.first, set.at = first, at
        first, at = first + kind.count, at + set.layout.page_bytes
        d.sets[i] = set
    end
    d.layout.page_bytes = at
end

-- Returns the codec of side "k" or "v".  `parts[stage]` is the part of each stage that is not left
-- out.
function codec.derive(side, config, parts, isa)
    local c, page_size = config[side], config.page_size
    check_parts(side, c, parts)
    check_shape(side, config, parts)
    if parts.choose then check_choice(side, c, parts) end

    -- Values that are in the keys are read where the keys are: in their order of codes.
    local in_keys = side == "v" and config.num_stored == 1
    local is_key = side == "k" or in_keys
    local raw, meta = parts.levels.raw, parts.meta or no_meta
    local along_lanes = (c.axis == "per_channel") == is_key
    local stored = { scale_bytes = meta.scale_bytes,
                     zero_bytes = parts.levels.stores_zero and meta.zero_bytes or 0,
                     extra = parts.extra, extra_number = c.extra_number }
    local planes = raw and {} or layout.planes(c.bits)
    local path = parts.round.path and paths.derive(side, c, planes, along_lanes, isa)
    local level_bits = c.bits + (path and 1 or 0)
    local fold = choose_fold(raw, along_lanes, c.group_size)
    local math = needs_floats(parts, is_key, config.target) and "f32" or config.math
    local flagged = parts.choose and parts.choose.flags
    local d = {
        side = side, title = in_keys and "values in the keys" or is_key and "keys" or "values",
        is_key = is_key, in_keys = in_keys, raw = raw or "none", empty = parts.levels.empty,
        bits = c.bits, head_dim = c.head_dim,
        -- Codes are levels, but where groups are paths, whose levels have one bit more.
        path = path or false, level_bits = level_bits, code_max = (1 << level_bits) - 1,
        zero_point = parts.levels.is_centered and 1 << c.bits - 1 or 0,
        axis = c.axis, group_size = raw and 0 or c.group_size,
        along_lanes = along_lanes,
        lane_extent = is_key and page_size or c.head_dim,
        word_extent = is_key and c.head_dim or page_size,
        fold = fold, planes = planes,
        math = in_keys and "tile" or choose_math(fold, math, isa, level_bits, flagged),
        layout = layout.side(c.bits, c.head_dim, page_size, raw and 0 or c.group_size, stored),
        scale_bytes = stored.scale_bytes, zero_bytes = stored.zero_bytes,
        parts = parts,
        dense = parts.transform and parts.transform.dense or false,
        factor = parts.fit and parts.fit.factors and parts.fit.factors[c.bits] or false,
        clips_row = parts.fit and parts.fit.clips_rows and clip_rank(c) or false,
        has_zero = parts.levels.stores_zero and not meta.constant or false,
        base = parts.meta and parts.meta.base or parts.levels.base or false,
        feedback = parts.round and parts.round.feedback or false,
        sweeps = parts.round.sweeps or c.round_number or 0,
        searches = parts.fit and parts.fit.searches or false,
    }
    d.unit_rows = unit_rows(d)
    -- Words of a lane that a device reads at once: few of many heads, whose products are unrolled.
    d.read_words = in_keys and 4 or config.num_heads >= 12 and not path and 8 or 16
    d.work = ({ int = "dots", tile = "tile", float = "folded" })[d.math]   -- a type
    add_levels(d, c, parts, isa)
    add_bases(d, c, parts, config)
    if path then add_teams(d) end
    if d.feedback then add_columns(d, side, config)
    elseif path and config.target == "cuda" then add_paths(d, c) end
    add_codes(d, planes)
    d.lane_numbers = number_list(isa.lanes)
    d.stat_names, d.stat_items, d.stat_parameters = list_stats(parts.fit)
    -- The arguments (word, lane) of a row and a channel.
    function d.word_lane(row, channel)
        return is_key and channel .. ", " .. row or row .. ", " .. channel
    end
    d.groups_met = not raw and along_lanes and groups_met(c.group_size, d.lane_extent, isa.lanes)
        or 1
    d.diagram = ("| codes: %d x u%d | scales: %d x %d bytes | zeros: %d x %d bytes |"):format(
        page_size * c.head_dim, c.bits, d.layout.num_groups, stored.scale_bytes,
        stored.zero_bytes > 0 and d.layout.num_groups or 0, stored.zero_bytes)
    add_sets(d, side, config, parts, isa)
    return d
end

return codec
