-- demo_table.lua -- runs of decode as a small table, from what `decode --json` writes.
--
--     lua5.4 tools/demo_table.lua PLAIN.json [PACKED.json FOLLOWED.json ...]
--
-- FOLLOWED is the packed cache before it along PLAIN's text.  Free texts part at the first close
-- decision and cannot be compared token by token after it.

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
    return run
end

local function bytes(n)
    if n >= 1 << 20 then return ("%.2f MB"):format(n / (1 << 20)) end
    return ("%.1f kB"):format(n / 1024)
end

local ROW = "%-10s %12s %14s %12s %10s %16s"

local function print_row(run, followed)
    local agree = "-"
    if followed then
        agree = ("%d of %d"):format(followed.number("agreed_tokens"),
                                    followed.number("followed_tokens"))
    end
    print(ROW:format(run.string("cache"):match("^[^:]*"),
                     ("%.2f"):format(run.number("bits_per_value")),
                     bytes(run.number("cache_bytes")),
                     ("%.0f %%"):format(100 * run.number("cache_bytes") /
                                        run.number("cache_f16_bytes")),
                     ("%.1f"):format(run.number("tokens_per_second")), agree))
end

local function main(plain, ...)
    local files = { ... }
    if not plain or #files % 2 ~= 0 then
        error("usage: demo_table.lua PLAIN.json [PACKED.json FOLLOWED.json ...]", 0)
    end
    print(ROW:format("cache", "bits a value", "cache bytes", "of f16 rows", "tokens/s",
                     "same next token"))
    print_row(read(plain))
    for i = 1, #files, 2 do print_row(read(files[i]), read(files[i + 1])) end
    print("Cache bytes are all that is allocated; 16-bit windows and tables weigh at this length.")
    print("Same next token: along the text of f16.")
end

main(...)
