-- paths.lua -- how levels come out of the codes of a path, which gen/parts/trellis.lua defines.
--
-- A group runs along the lanes of a cell or along its words (gen/layout.lua).  x, bit 0 of a code,
-- is in the plane of the low bits.  All x of a word are delayed at once:
--     along lanes     by i lanes, with the lanes before them from the cell before
--     along words     by i codes: i / 2 places in each half, and where i is odd the halves change
-- The XORs make s1 and s0 of every code of a word; then codes of even and of odd places are parted,
-- so that each has room for one bit more: a code, of w bits in the plane, becomes w + 1 bits in a
-- place of 2 w.

local refuse = require "refuse"

local paths = {}

-- By states: the delays whose x make s0 and s1 (octal 2, 04, 04, 010, 024; 5, 013, 023, 045, 0103).
local codes = {
    [4]  = { s0 = { 1 },    s1 = { 0, 2 } },
    [8]  = { s0 = { 2 },    s1 = { 0, 1, 3 } },
    [16] = { s0 = { 2 },    s1 = { 0, 1, 4 } },
    [32] = { s0 = { 3 },    s1 = { 0, 2, 5 } },
    [64] = { s0 = { 2, 4 }, s1 = { 0, 1, 6 } },
}

local function check(side, c, code)
    if not code then
        refuse("%s.round = %s%s: states must be 4, 8, 16, 32 or 64", side, c.round,
               tostring(c.round_number))
    end
    if c.bits > 4 then
        refuse("%s.bits = %d: round %s is for 1 to 4", side, c.bits, c.round)
    end
    if c.group_size % 16 ~= 0 or c.group_size > 256 then
        refuse("%s.group_size = %d: round %s needs a multiple of 16, at most 256", side,
               c.group_size, c.round)
    end
end

-- Returns for each state and x the sub-grid of the next level.
local function sub_grids(states, code)
    local subs = {}
    local function parity(history, delays)
        local sum = 0
        for _, i in ipairs(delays) do sum = sum ~ history >> i & 1 end
        return sum
    end
    for state = 0, states - 1 do
        subs[state] = {}
        for x = 0, 1 do
            local history = state << 1 | x
            subs[state][x] = 2 * parity(history, code.s1) + parity(history, code.s0)
        end
    end
    return subs
end

local function mask(bits, step)
    local m = 0
    for at = 0, 31, step do m = m | bits << at end
    return ("0x%08xu"):format(m & 0xffffffff)
end

-- The lanes that are `distance` vectors before these.
local function lanes_before(plane, k, distance, isa)
    local back = distance * isa.lanes
    local cell = ("(lane < %d ? before : cell) + %d"):format(back, plane.at + 64 * k)
    local lane = ("(lane + %d) %% 16"):format(16 - back)
    if plane.width == 1 then return ("load_narrow(%s, %s)"):format(cell, lane) end
    return ("load_u32(%s + %s * 4)"):format(cell, lane)
end

-- Adds to reads what delays word k by lanes; returns the names of the delayed by delay.
local function delay_lanes(reads, plane, k, delays, isa)
    local names, vectors = {}, { [0] = "now_" .. k }
    for _, i in ipairs(delays) do
        local near, apart = i // isa.lanes, i % isa.lanes
        for n = #vectors + 1, near + (apart > 0 and 1 or 0) do
            vectors[n] = ("lanes_%d_%d"):format(n, k)
            reads[#reads + 1] = { name = vectors[n], expr = lanes_before(plane, k, n, isa) }
        end
        names[i] = vectors[near]
        if apart > 0 then
            names[i] = ("late_%d_%d"):format(i, k)
            reads[#reads + 1] = { name = names[i], expr = ("later_%d(%s, %s)"):format(
                apart, vectors[near + 1], vectors[near]) }
        end
    end
    return names
end

-- The same by codes of a word, whose halves have `span` bits.
local function delay_words(reads, plane, k, delays, last)
    local names, width, span = { [0] = "now_" .. k }, plane.width, plane.width == 1 and 8 or 16
    local before = "now_" .. k - 1
    if k == 0 then
        before = "far"
        local word = ("before + %d"):format(plane.at + 64 * last)
        reads[#reads + 1] = { name = before, expr = width == 1
            and ("load_narrow(%s, lane)"):format(word) or ("load_u32(%s + lane * 4)"):format(word) }
    end
    local function places(now, far, left)
        if left == 0 then return now end
        return ("(vu)shift_in((vp)%s, (vp)%s, %d, %d)"):format(now, far, left, span)
    end
    for _, i in ipairs(delays) do
        local left = i // 2 * width
        if i > 0 then
            names[i] = ("late_%d_%d"):format(i, k)
            local expr = places("now_" .. k, before, left)
            if i % 2 == 1 then
                local now, far = ("swapped(now_%d)"):format(k), ("swapped(%s)"):format(before)
                expr = ("(%s & 0xffffu) | (%s & 0xffff0000u)"):format(
                    places(now, far, left + width), places(now, far, left))
            end
            reads[#reads + 1] = { name = names[i], expr = expr }
        end
    end
    return names
end

local function xor(names, delays)
    local terms = {}
    for n, i in ipairs(delays) do terms[n] = names[i] end
    return table.concat(terms, " ^ ")
end

-- Adds to reads the levels of word k, apart: even_k and odd_k.
local function part_levels(reads, plane, k, s1, s0)
    local w = plane.width
    local all, first = mask(1, w), mask(1, 2 * w)
    local function add(name, expr) reads[#reads + 1] = { name = name .. k, expr = expr } end
    add("s1_", s1)
    add("s0_", s0)
    add("up_", w == 1 and "s1_" .. k or ("(s1_%d & %s) | (now_%d & ~%s)"):format(k, all, k, all))
    add("even_", ("(s0_%d & %s) | ((up_%d << 1) & ~%s)"):format(k, first, k, first))
    local up = w == 1 and "up_" .. k or ("(up_%d >> %d)"):format(k, w - 1)
    add("odd_", ("((s0_%d >> %d) & %s) | (%s & ~%s)"):format(k, w, first, up, first))
end

local function shifted(item, right)
    if right == 0 then return item end
    return right > 0 and ("%s >> %d"):format(item, right) or ("%s << %d"):format(item, -right)
end

-- Returns an expression of codes from place k of a half on: of pairs, or of one half.
local function level_expr(planes, k, half, cast)
    local w = planes[1].width
    local each = 16 // w
    local name = (k % each % 2 == 0 and "even_" or "odd_") .. k // each
    local terms = { ("(%s & %d)"):format(
        shifted(cast .. name, k % each // 2 * 2 * w + 16 * half), (2 << w) - 1) }
    for p = 2, #planes do
        local low = planes[p].low + 1
        local bit = k % (16 // planes[p].width) * planes[p].width + 16 * half
        terms[p] = ("(%s & %d)"):format(
            shifted(("%sword_%d_0"):format(cast, planes[p].low), bit - low),
            ((1 << planes[p].width) - 1) << low)
    end
    return table.concat(terms, " | ")
end

-- Returns what kernels need of a side whose groups are paths:
--     states, memory (of a state, in bits), sub[state][x], s0 and s1 (delays)
--     along_lanes, and reads: name and expression, one after the other, of `cell`, of `before`,
--     which is the cell before it on the path, and `lane`
--     code(i), pair(k): levels as expressions of the names
function paths.derive(side, c, planes, along_lanes, isa)
    local states = c.round_number
    local code = codes[states]
    check(side, c, code)
    local delays = {}
    for i = 0, 6 do
        for _, list in ipairs { code.s0, code.s1 } do
            for _, delay in ipairs(list) do
                if delay == i and delays[#delays] ~= i then delays[#delays + 1] = i end
            end
        end
    end
    local plane, reads = planes[1], {}
    local last = (plane.width + 1) // 2 - 1
    for k = 0, last do
        reads[#reads + 1] = { name = "now_" .. k, expr = plane.width == 1
            and ("load_narrow(cell + %d, lane)"):format(plane.at)
            or ("load_u32(cell + %d + lane * 4)"):format(plane.at + 64 * k) }
    end
    for k = 0, last do
        local names = along_lanes and delay_lanes(reads, plane, k, delays, isa)
            or delay_words(reads, plane, k, delays, last)
        part_levels(reads, plane, k, xor(names, code.s1), xor(names, code.s0))
    end
    for p = 2, #planes do
        reads[#reads + 1] = { name = ("word_%d_0"):format(planes[p].low),
                              expr = ("load_narrow(cell + %d, lane)"):format(planes[p].at) }
    end
    return {
        states = states, memory = ({ [4] = 2, [8] = 3, [16] = 4, [32] = 5, [64] = 6 })[states],
        sub = sub_grids(states, code), s0 = code.s0, s1 = code.s1, most = (1 << c.bits - 1) - 1,
        along_lanes = along_lanes, reads = reads,
        code = function(i) return level_expr(planes, i // 2, i % 2, "") end,
        pair = function(k) return level_expr(planes, k, 0, "(vp)") end,
    }
end

return paths
