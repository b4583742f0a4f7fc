// kvl_lua.h -- run the generator: configuration in, program text out.
//
// The only file that names a lua_* function.  One state lives for one generation.  Whatever can
// raise runs inside the one lua_pcall of kvl__generate: no error jumps over a caller's frame.

#ifndef KVL_LUA_H
#define KVL_LUA_H

#include "kvl_base.h"

// One field of a configuration.  A dotted name makes tables: "k.bits" is config.k.bits.
typedef struct kvl__field {
    const char* name;
    const char* text;          // NULL: the field is the integer `value`
    int64_t     value;
} kvl__field;

#ifdef KVLOOM_NO_LUA

KVL__FN kvl_status kvl__generate(kvl_context* ctx, const kvl__field* fields, int num_fields,
                                 char** text, size_t* text_bytes)
{
    (void)fields;
    (void)num_fields;
    *text = NULL;
    *text_bytes = 0;
    return kvl__fail(ctx, KVL_NO_KERNEL, "no generator: this build was made with KVLOOM_NO_LUA");
}

#else

#include "kvl_text.h"      // generated: kvl__text_find(path) -> the lines of a file, or NULL

#ifdef __cplusplus
extern "C" {
#endif
#include <lua.h>
#include <lauxlib.h>
#include <lualib.h>
#ifdef __cplusplus
}
#endif

#if LUA_VERSION_NUM != 504
#error "kvloom: the generator is written for Lua 5.4"
#endif

enum {
    KVL__LUA_BYTES_MAX = 64 << 20,     // a generation needs about 1 MB
    KVL__LUA_STEPS_MAX = 50000000      // instructions; a generation needs about 1 million
};

typedef struct kvl__generation {
    kvl_context*      ctx;
    const kvl__field* fields;
    int               num_fields;
    size_t            live_bytes;
    int               capped;          // KVL__LUA_BYTES_MAX refused an allocation
    char*             text;            // the result, from the context's allocator
    size_t            text_bytes;
} kvl__generation;

KVL__FN void* kvl__lua_alloc(void* user, void* old, size_t old_bytes, size_t bytes)
{
    kvl__generation* g = (kvl__generation*)user;
    void* ptr = NULL;
    if (!old) old_bytes = 0;           // Lua passes a type here
    if (bytes > 0) {
        if (bytes > old_bytes && bytes - old_bytes > KVL__LUA_BYTES_MAX - g->live_bytes) {
            g->capped = 1;
            return NULL;
        }
        ptr = kvl__alloc(g->ctx, bytes);
        if (!ptr) return NULL;
        if (old) memcpy(ptr, old, bytes < old_bytes ? bytes : old_bytes);
    }
    if (old) kvl__free(g->ctx, old, old_bytes);
    g->live_bytes += bytes - old_bytes;
    return ptr;
}

// Raises at every further instruction as well, so that no pcall of a module can go on.
KVL__FN void kvl__lua_stop(lua_State* L, lua_Debug* ar)
{
    (void)ar;
    lua_sethook(L, kvl__lua_stop, LUA_MASKCOUNT, 1);
    luaL_error(L, "the generator ran past its limit of %d instructions", KVL__LUA_STEPS_MAX);
}

// load(text, name, "t", env): text only, whatever mode is asked for.
KVL__FN int kvl__lua_load(lua_State* L)
{
    size_t bytes;
    const char* text = luaL_checklstring(L, 1, &bytes);
    const char* name = luaL_checkstring(L, 2);
    lua_settop(L, 4);
    if (luaL_loadbufferx(L, text, bytes, name, "t") != LUA_OK) {
        lua_pushnil(L);
        lua_insert(L, -2);
        return 2;
    }
    if (!lua_isnil(L, 4)) {
        lua_pushvalue(L, 4);
        lua_setupvalue(L, -2, 1);
    }
    return 1;
}

// setmetatable without __gc: finalizers run while the state closes, where no limit holds.
KVL__FN int kvl__lua_setmetatable(lua_State* L)
{
    luaL_checktype(L, 1, LUA_TTABLE);
    lua_settop(L, 2);
    if (lua_istable(L, 2)) {
        lua_pushliteral(L, "__gc");
        if (lua_rawget(L, 2) != LUA_TNIL) return luaL_error(L, "__gc: not allowed in a generator");
        lua_pop(L, 1);
    } else if (!lua_isnil(L, 2)) {
        return luaL_error(L, "setmetatable: a table or nil expected");
    }
    if (luaL_getmetafield(L, 1, "__metatable") != LUA_TNIL)
        return luaL_error(L, "cannot change a protected metatable");
    lua_setmetatable(L, 1);
    return 1;
}

KVL__FN int kvl__lua_text_of(lua_State* L)
{
    const char* const* line = kvl__text_find(luaL_checkstring(L, 1));
    luaL_Buffer text;
    if (!line) {
        lua_pushnil(L);
        return 1;
    }
    luaL_buffinit(L, &text);
    for (; *line; ++line) luaL_addstring(&text, *line);
    luaL_pushresult(&text);
    return 1;
}

// require(name): an embedded module, loaded once.  A codec is data: it is given no names at all.
KVL__FN int kvl__lua_require(lua_State* L)
{
    const char* name = luaL_checkstring(L, 1);
    const char* path;
    const char* text;
    size_t bytes;
    lua_settop(L, 1);
    luaL_getsubtable(L, LUA_REGISTRYINDEX, "kvl.loaded");                          // 2
    if (lua_getfield(L, 2, name) != LUA_TNIL) return 1;                            // 3
    path = lua_pushfstring(L, "@gen/%s.lua", luaL_gsub(L, name, ".", "/"));        // 4, 5
    lua_pushcfunction(L, kvl__lua_text_of);
    lua_pushstring(L, path + 1);
    lua_call(L, 1, 1);                                                             // 6
    text = lua_tolstring(L, 6, &bytes);
    if (!text) return luaL_error(L, "%s: no such module", path + 1);
    if (luaL_loadbufferx(L, text, bytes, path, "t") != LUA_OK) return lua_error(L);
    if (strncmp(name, "codecs.", 7) == 0) {
        lua_newtable(L);
        lua_setupvalue(L, -2, 1);
    }
    lua_call(L, 0, 1);
    if (lua_isnil(L, -1)) return luaL_error(L, "%s: the module returned nothing", path + 1);
    lua_pushvalue(L, -1);
    lua_setfield(L, 2, name);
    return 1;
}

KVL__FN void kvl__lua_remove(lua_State* L, int table, const char* const* names)
{
    table = lua_absindex(L, table);
    for (; *names; ++names) {
        lua_pushnil(L);
        lua_setfield(L, table, *names);
    }
}

// Leaves what a pure function needs: no files, clock, random numbers or unordered walks.
KVL__FN void kvl__lua_open(lua_State* L)
{
    static const char* const not_in_base[] = {
        "collectgarbage", "dofile", "loadfile", "next", "pairs", "print", "warn", NULL };
    static const char* const not_in_math[] = { "random", "randomseed", NULL };
    static const char* const not_in_string[] = { "dump", NULL };
    luaL_requiref(L, LUA_STRLIBNAME, luaopen_string, 1);
    kvl__lua_remove(L, -1, not_in_string);
    luaL_requiref(L, LUA_TABLIBNAME, luaopen_table, 1);
    luaL_requiref(L, LUA_MATHLIBNAME, luaopen_math, 1);
    kvl__lua_remove(L, -1, not_in_math);
    luaL_requiref(L, LUA_GNAME, luaopen_base, 1);
    kvl__lua_remove(L, -1, not_in_base);
    lua_register(L, "load", kvl__lua_load);
    lua_register(L, "setmetatable", kvl__lua_setmetatable);
    lua_register(L, "require", kvl__lua_require);
    lua_settop(L, 1);
}

// Pushes a table of integers, strings and tables of them.
KVL__FN void kvl__lua_push_config(lua_State* L, const kvl__field* fields, int num_fields)
{
    lua_newtable(L);
    for (int i = 0; i < num_fields; ++i) {
        const char* name = fields[i].name;
        lua_pushvalue(L, -1);
        for (const char* dot = strchr(name, '.'); dot; dot = strchr(name, '.')) {
            lua_pushlstring(L, name, (size_t)(dot - name));
            luaL_getsubtable(L, -2, lua_tostring(L, -1));
            lua_replace(L, -3);
            lua_pop(L, 1);
            name = dot + 1;
        }
        if (fields[i].text) lua_pushstring(L, fields[i].text);
        else lua_pushinteger(L, (lua_Integer)fields[i].value);
        lua_setfield(L, -2, name);
        lua_pop(L, 1);
    }
}

KVL__FN int kvl__lua_body(lua_State* L)
{
    kvl__generation* g = (kvl__generation*)lua_touserdata(L, 1);
    size_t bytes;
    kvl__lua_open(L);
    lua_getglobal(L, "require");
    lua_pushliteral(L, "main");
    lua_call(L, 1, 1);
    kvl__lua_push_config(L, g->fields, g->num_fields);
    lua_pushcfunction(L, kvl__lua_text_of);
    lua_call(L, 2, 1);
    if (lua_type(L, -1) != LUA_TSTRING)
        return luaL_error(L, "gen/main.lua returned a %s: must be a string", luaL_typename(L, -1));
    const char* text = lua_tolstring(L, -1, &bytes);

    // Nothing below raises: the memory that is taken cannot be lost.
    g->text = (char*)kvl__alloc(g->ctx, bytes + 1);
    if (g->text) memcpy(g->text, text, bytes + 1);
    g->text_bytes = bytes;
    return 0;
}

// Turns what lua_pcall left into a status.  Calls nothing that can raise.
KVL__FN kvl_status kvl__lua_status(lua_State* L, int result, const kvl__generation* g)
{
    if (result == LUA_OK && g->text) return KVL_OK;
    if (g->capped)
        return kvl__fail(g->ctx, KVL_GENERATE, "the generator wants more than %d MB of memory",
                         KVL__LUA_BYTES_MAX >> 20);
    if (result == LUA_OK || result == LUA_ERRMEM)
        return kvl__fail(g->ctx, KVL_NO_MEMORY, "the generator ran out of memory");
    if (lua_istable(L, -1)) {                                                // gen/refuse.lua
        if (lua_rawgeti(L, -1, 1) == LUA_TSTRING)
            return kvl__fail(g->ctx, KVL_UNSUPPORTED, "%s", lua_tostring(L, -1));
        return kvl__fail(g->ctx, KVL_GENERATE, "the generator raised a table without a message");
    }
    if (lua_type(L, -1) == LUA_TSTRING)
        return kvl__fail(g->ctx, KVL_GENERATE, "%s", lua_tostring(L, -1));
    return kvl__fail(g->ctx, KVL_GENERATE, "the generator raised a %s instead of a message",
                     lua_typename(L, lua_type(L, -1)));
}

// Sets *text to the program for these fields, from the context's allocator (text_bytes + 1 bytes,
// terminated); NULL after a failure.
KVL__FN kvl_status kvl__generate(kvl_context* ctx, const kvl__field* fields, int num_fields,
                                 char** text, size_t* text_bytes)
{
    kvl__generation g;
    memset(&g, 0, sizeof g);
    g.ctx = ctx;
    g.fields = fields;
    g.num_fields = num_fields;
    *text = NULL;
    *text_bytes = 0;
    lua_State* L = lua_newstate(kvl__lua_alloc, &g);
    if (!L) return kvl__fail(ctx, KVL_NO_MEMORY, "the generator could not start");

    lua_sethook(L, kvl__lua_stop, LUA_MASKCOUNT, KVL__LUA_STEPS_MAX);
    lua_pushcfunction(L, kvl__lua_body);       // a light function: takes no memory
    lua_pushlightuserdata(L, &g);
    const int result = lua_pcall(L, 1, 0, 0);
    const kvl_status status = kvl__lua_status(L, result, &g);
    lua_close(L);
    *text = g.text;
    *text_bytes = g.text_bytes;
    return status;
}

#endif  // KVLOOM_NO_LUA

#endif
