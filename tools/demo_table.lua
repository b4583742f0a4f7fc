-- demo_table.lua -- two runs of decode as a small table: lua5.4 tools/demo_table.lua A.json B.json
--
-- Reads what `decode --json` writes.  Agreement compares the token ids of the second run with those
-- of the first: how many are equal before the first difference, and the share of all positions.

local function read(path)
    local file = assert(io.open(path, "rb"))
    local text = file:read("a")
    file:close()
    local run = {}
    -- Strings are blanked first, so that a field's name within the generated text is not a field.
    local bare = text:gsub("\\.", "x"):gsub('(:%s*)"[^"]*"', '%1""')
    function run.number(name)
        local value = bare:match('"' .. name .. '"%s*:%s*(%-?[%d.eE+-]+)')
        return tonumber(value) or error(path .. ": no number named " .. name, 0)
    end
    function run.string(name)
        return text:match('"' .. name .. '"%s*:%s*"([^"]*)"') or
            error(path .. ": no text named " .. name, 0)
    end
    function run.numbers(name)
        local list = bare:match('"' .. name .. '"%s*:%s*%[([^%]]*)%]') or
            error(path .. ": no list named " .. name, 0)
        local out = {}
        for value in list:gmatch("%-?%d+") do out[#out + 1] = tonumber(value) end
        return out
    end
    return run
end

local function agreement(a, b)
    local equal, before, length = 0, nil, math.min(#a, #b)
    for i = 1, length do
        if a[i] == b[i] then equal = equal + 1 else before = before or i - 1 end
    end
    return before or length, equal, math.max(#a, #b)
end

local function bytes(n)
    if n >= 1 << 20 then return ("%.2f MB"):format(n / (1 << 20)) end
    return ("%.1f kB"):format(n / 1024)
end

local function main(first, second)
    if not second then error("usage: demo_table.lua A.json B.json", 0) end
    local runs = { read(first), read(second) }
    local width = 20
    for _, run in ipairs(runs) do width = math.max(width, #run.string("cache")) end
    local row = ("%%-%ds %%12s %%12s %%10s %%12s"):format(width)
    print(row:format("cache", "bits a value", "cache bytes", "of f16", "tokens/s"))
    for _, run in ipairs(runs) do
        print(row:format(run.string("cache"), ("%.2f"):format(run.number("bits_per_value")),
                         bytes(run.number("cache_bytes")),
                         ("%.0f%%"):format(100 * run.number("cache_bytes") /
                                           run.number("cache_f16_bytes")),
                         ("%.1f"):format(run.number("tokens_per_second"))))
    end
    local before, equal, length = agreement(runs[1].numbers("token_ids"),
                                            runs[2].numbers("token_ids"))
    print(("agreement: the first %d of %d tokens are equal; %d of %d (%.0f%%) in the same place")
        :format(before, length, equal, length, 100 * equal / math.max(length, 1)))
end

local ok, message = pcall(main, ...)
if not ok then
    io.stderr:write(message, "\n")
    os.exit(1)
end
