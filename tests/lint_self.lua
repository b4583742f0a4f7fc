-- lint_self.lua -- the linter on a small tree with one break of each rule.  Prints TAP.
--
-- Fails when a rule goes blind, a message loses its file or line, or a waiver stops working.

local root = os.tmpname()
os.remove(root)

local function shell(command)
    local pipe = assert(io.popen(command))
    local text = pipe:read("a")
    local _, _, status = pipe:close()
    return text, status
end

local function write(path, ...)
    shell(("mkdir -p '%s/%s'"):format(root, path:match("^(.*)/") or "."))
    local file = assert(io.open(root .. "/" .. path, "wb"))
    file:write(table.concat({ ... }, "\n"), "\n")
    file:close()
end

local function lint()
    local text, status = shell(("'%s' tools/lint.lua --root '%s' --warnings"):format(arg[-1], root))
    local lines = {}
    for line in text:gmatch("[^\n]+") do lines[line] = true end
    return lines, status, text
end

-- Words that the linter looks for are put together here, so that it does not find them.
local allow, to_do, banned = "lint" .. ": allow ", "TO" .. "DO", "blo" .. "ck"

local function bad_tree()
    local long = { "-- long.lua -- too long.", "local function long()" }
    for i = 3, 72 do long[i] = "    f()" end
    write("gen/main.lua", "-- main.lua -- entry.", 'require "long"', 'require "impure"',
          'kernel = "attend"')
    write("gen/long.lua", table.concat(long, "\n"), "end")
    write("gen/impure.lua", "-- impure.lua -- breaks purity.", "for k in pairs(t) do end",
          "local x = next(t)", "os.exit(1)", "-- pairs(t) in a comment is fine",
          "for i in ipairs(t) do end", 'local w = "zip_8"')
    write("gen/codecs/zip_8.lua", "-- zip_8 -- a codec.", "return {}")
    write("gen/parts/own.lua", "-- own -- a part, as Zip_8 has it.", "return {}")
    write("include/kvloom.h", "// kvloom.h -- header.", '#include "kvl_a.h"',
          '#include "test_x.h"')
    write("tests/test_x.h", "// test_x.h -- a test's header.")
    write("runtime/kvl_a.h", "// kvl_a.h -- breaks.", "int my_" .. banned .. ";", "x = malloc(1);",
          "cuInit(0);", "lua_pop(L);", "\tint tab;", "int space; ", "int caf\195\169;",
          "// " .. to_do, "#if 0", 'f("malloc( and lua_pop in a string");',
          "// the new way", "int " .. ("x"):rep(100) .. ";", "snprintf(a);",
          "y = malloc(2);   // " .. allow .. "owner", "int z;   // " .. allow .. "owner")
    write("runtime/kvl_orphan.h", "// wrong first line")
    write("templates/host/attend.c", "// attend.c -- glue.", "int $(a)_at;", "int $(a .. 1);",
          "//% for i = 1, $(n)x do")
    write("tools/attend.c", "// attend.c -- a second one.")
end

local expected = {
    "gen/impure.lua:2: pure: 'pairs('", "gen/impure.lua:3: pure: 'next('",
    "gen/impure.lua:4: pure: 'os.'", "gen/impure.lua:7: codec-name: 'zip_8'",
    "gen/long.lua:2: function-length: 72 lines, at most 70",
    "gen/parts/own.lua:1: codec-name: 'zip_8'",
    "include/kvloom.h:3: direction: include/ must not see tests/",
    "runtime/kvl_a.h:2: banned-word: 'my_" .. banned .. "': write cta, page or group",
    "runtime/kvl_a.h:3: owner: 'malloc' belongs to kvl_base.h",
    "runtime/kvl_a.h:4: driver-names: 'cuInit' outside kvl_driver.h",
    "runtime/kvl_a.h:5: lua-names: 'lua_pop' outside kvl_lua.h",
    "runtime/kvl_a.h:6: tab: a tab", "runtime/kvl_a.h:7: trailing-space: space at the end",
    "runtime/kvl_a.h:8: ascii: byte 0xc3 in column 8", "runtime/kvl_a.h:9: leftover: " .. to_do,
    "runtime/kvl_a.h:10: leftover: code that is off",
    "runtime/kvl_a.h:12: warning: history: 'new' in a comment",
    "runtime/kvl_a.h:13: columns: 105 columns, at most 100",
    "runtime/kvl_a.h:16: unused-waiver: 'owner' excuses nothing here",
    "runtime/kvl_orphan.h:1: opening: must be 'kvl_orphan.h -- purpose'",
    "runtime/kvl_orphan.h:1: unreached: nothing includes it",
    "templates/host/attend.c:2: glued: '$(a)' touches a name: put the whole name inside",
    "tools/attend.c:1: unique-name: also templates/host/attend.c",
}

local number, failed = 0, 0
local function check(holds, name)
    number = number + 1
    if not holds then failed = failed + 1 end
    print(("%s %d - %s"):format(holds and "ok" or "not ok", number, name))
end

bad_tree()
local lines, status, text = lint()
check(status == 1, "a tree with findings ends with status 1")
for _, line in ipairs(expected) do check(lines[line], line) end
local count = 0
for _ in text:gmatch("\n") do count = count + 1 end
check(count == #expected + 1, "nothing else is found")
if failed > 0 then io.stderr:write(text) end

shell(("rm -rf '%s'"):format(root))
write("include/kvloom.h", "// kvloom.h -- header.")
lines, status = lint()
check(status == 0, "a clean tree ends with status 0")
check(lines["1 files, 0 findings, 0 warnings"], "the closing line counts")
shell(("rm -rf '%s'"):format(root))

print("1.." .. number)
os.exit(failed == 0 and 0 or 1)
