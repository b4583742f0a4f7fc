// parse.c -- PTX text into functions of statements, and symbols with scopes.
//
// A statement keeps its operands as text; decode.c reads them.  A brace opens a scope: names of
// inline assembly and of call sequences end with it.

#include "sim.h"

#include <ctype.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct parser {
    const char* at;
    int         line;
    int         file, file_line;
    module*     mod;
    function*   fn;             // whose body is read; NULL: module scope
    int         scope;
    jmp_buf     stop;
} parser;

static void fail(parser* p, const char* format, ...)
{
    char text[512];
    va_list list;
    va_start(list, format);
    vsnprintf(text, sizeof text, format, list);
    va_end(list);
    snprintf(p->mod->log, sizeof p->mod->log, "PTX line %d: %s", p->line, text);
    longjmp(p->stop, 1);
}

static void* grown(void* array, int count, int* max, size_t size)
{
    if (count < *max) return array;
    *max = *max ? 2 * *max : 16;
    return realloc(array, (size_t)*max * size);
}

static char* copy_text(const char* from, size_t length)
{
    char* text = malloc(length + 1);
    memcpy(text, from, length);
    text[length] = 0;
    return text;
}

static void skip_space(parser* p)
{
    for (;;) {
        if (*p->at == '\n') {
            ++p->line, ++p->at;
        } else if (isspace((unsigned char)*p->at)) {
            ++p->at;
        } else if (p->at[0] == '/' && p->at[1] == '/') {
            while (*p->at && *p->at != '\n') ++p->at;
        } else if (p->at[0] == '/' && p->at[1] == '*') {
            while (*p->at && !(p->at[0] == '*' && p->at[1] == '/')) {
                if (*p->at++ == '\n') ++p->line;
            }
            if (*p->at) p->at += 2;
        } else {
            return;
        }
    }
}

static bool is_name(char c)
{
    return isalnum((unsigned char)c) || c == '_' || c == '$' || c == '%';
}

// A name, a directive with its dot, or a number; "" at anything else.  .reg.b32 are two.
static char* next_name(parser* p, char* out, size_t size)
{
    skip_space(p);
    const bool number = isdigit((unsigned char)*p->at);
    size_t length = *p->at == '.' ? 1 : 0;
    while (is_name(p->at[length]) || (number && p->at[length] == '.')) ++length;
    if (length + 1 > size) fail(p, "a name of %zu characters", length);
    memcpy(out, p->at, length);
    out[length] = 0;
    p->at += length;
    return out;
}

static bool take(parser* p, char c)
{
    skip_space(p);
    if (*p->at != c) return false;
    ++p->at;
    return true;
}

static void expect(parser* p, char c)
{
    if (!take(p, c)) fail(p, "expected '%c' before '%.20s'", c, p->at);
}

static uint64_t next_number(parser* p)
{
    char name[64];
    uint64_t value = 0;
    if (!parse_number(next_name(p, name, sizeof name), T_U64, &value)) {
        fail(p, "'%s' is not a number", name);
    }
    return value;
}

static symbol* add_symbol(parser* p, const char* name, symbol_kind kind)
{
    symbol* s;
    if (p->fn) {
        function* fn = p->fn;
        fn->symbols = grown(fn->symbols, fn->num_symbols, &fn->max_symbols, sizeof *s);
        s = &fn->symbols[fn->num_symbols++];
    } else {
        module* mod = p->mod;
        mod->symbols = grown(mod->symbols, mod->num_symbols, &mod->max_symbols, sizeof *s);
        s = &mod->symbols[mod->num_symbols++];
    }
    memset(s, 0, sizeof *s);
    s->name = copy_text(name, strlen(name));
    s->kind = kind;
    s->scope = p->scope;
    return s;
}

// After .reg: type, then names, some with <count>.
static void parse_registers(parser* p)
{
    char name[256];
    const type t = type_of_name(next_name(p, name, sizeof name) + 1);
    if (t == T_NONE || t == T_B128) fail(p, ".reg%s: no such registers here", name);
    do {
        next_name(p, name, sizeof name);
        symbol* s = add_symbol(p, name, SYM_REG);
        s->type = t;
        if (take(p, '<')) {
            s->count = (uint32_t)next_number(p);
            expect(p, '>');
        }
    } while (take(p, ','));
    expect(p, ';');
}

static void add_relocation(parser* p, symbol* s, uint64_t offset, const char* name,
                           bool is_generic)
{
    relocation* r = calloc(1, sizeof *r);
    r->name = copy_text(name, strlen(name));
    r->offset = offset;
    if (is_generic) expect(p, ')');
    if (take(p, '+')) r->addend = (int64_t)next_number(p);
    r->next = s->relocations;
    s->relocations = r;
}

// One element of an initial value, at an offset.
static void parse_element(parser* p, symbol* s, uint64_t offset)
{
    char name[256];
    const uint32_t size = type_bytes(s->type);
    const bool minus = take(p, '-');
    next_name(p, name, sizeof name);
    uint64_t value = 0;
    if (offset + size > s->bytes) fail(p, "%s: more values than room", s->name);
    if (strcmp(name, "generic") == 0) {
        expect(p, '(');
        add_relocation(p, s, offset, next_name(p, name, sizeof name), true);
        return;
    }
    if (!parse_number(name, s->type, &value)) {
        if (size != 8) fail(p, "'%s' in the value of %s", name, s->name);
        add_relocation(p, s, offset, name, false);
        return;
    }
    if (minus) value = 0 - value;
    memcpy(s->init + offset, &value, size);
}

static uint64_t parse_list(parser* p, symbol* s, uint64_t offset)
{
    if (!take(p, '{')) {
        parse_element(p, s, offset);
        return offset + type_bytes(s->type);
    }
    while (!take(p, '}')) {
        offset = parse_list(p, s, offset);
        take(p, ',');
    }
    return offset;
}

// After .shared, .local, .global, .const or .param: the rest of one declaration, without its end.
static symbol* parse_variable(parser* p, symbol_kind kind)
{
    char name[512];
    uint32_t align = 0, vector = 1;
    type t = T_NONE;
    for (;;) {
        skip_space(p);
        if (*p->at != '.') break;
        next_name(p, name, sizeof name);
        if (strcmp(name, ".align") == 0) {
            align = (uint32_t)next_number(p);
        } else if (strcmp(name, ".v2") == 0 || strcmp(name, ".v4") == 0) {
            vector = (uint32_t)(name[2] - '0');
        } else if (strcmp(name, ".ptr") == 0 || strcmp(name, ".global") == 0 ||
                   strcmp(name, ".shared") == 0 || strcmp(name, ".const") == 0 ||
                   strcmp(name, ".local") == 0) {
            continue;
        } else {
            t = type_of_name(name + 1);
            if (t == T_NONE) fail(p, "a variable of type %s", name);
        }
    }
    if (t == T_NONE || t == T_PRED) fail(p, "a variable without a type");
    symbol* s = add_symbol(p, next_name(p, name, sizeof name), kind);
    s->type = t;
    s->bytes = (uint64_t)type_bytes(t) * vector;
    s->align = align > s->bytes || kind != SYM_KERNEL_PARAM ? align : (uint32_t)s->bytes;
    if (!s->align) s->align = (uint32_t)s->bytes;
    if (s->align & (s->align - 1)) fail(p, ".align %u", s->align);
    while (take(p, '[')) {
        if (take(p, ']')) {
            s->bytes = 0;
            continue;
        }
        s->bytes *= next_number(p);
        expect(p, ']');
    }
    if (take(p, '=')) {
        s->init = calloc(1, s->bytes ? s->bytes : 1);
        parse_list(p, s, 0);
    }
    return s;
}

static void add_statement(parser* p, char* text, int line)
{
    function* fn = p->fn;
    fn->statements = grown(fn->statements, fn->num_statements, &fn->max_statements,
                           sizeof *fn->statements);
    statement* s = &fn->statements[fn->num_statements++];
    memset(s, 0, sizeof *s);
    s->line = line, s->scope = p->scope, s->file = p->file, s->file_line = p->file_line;
    char* at = text;
    if (*at == '@') {
        const size_t length = strcspn(at + 1, " \t");
        s->guard = copy_text(at + 1, length);
        at += 1 + length;
        while (*at == ' ') ++at;
    }
    size_t length = strcspn(at, " {[(");
    s->opcode = copy_text(at, length);
    at += length;
    while (*at) {
        while (*at == ' ' || *at == ',') ++at;
        if (!*at) break;
        int depth = 0;
        length = 0;
        for (; at[length] && (depth || at[length] != ','); ++length) {
            if (strchr("{[(", at[length])) ++depth;
            if (strchr("}])", at[length])) --depth;
        }
        if (s->num_operands == MAX_OPERANDS) fail(p, "too many operands: %s", s->opcode);
        size_t end = length;
        while (end && at[end - 1] == ' ') --end;
        s->operand[s->num_operands++] = copy_text(at, end);
        at += length;
    }
}

// From here to the semicolon, with comments out and spaces joined.
static char* read_instruction(parser* p)
{
    size_t length = 0, max = 64;
    char* text = malloc(max);
    for (;;) {
        const char* before = p->at;
        skip_space(p);
        if (length + 3 > max) text = realloc(text, max *= 2);
        if (p->at != before && length) text[length++] = ' ';
        if (!*p->at) fail(p, "the text ends inside an instruction");
        if (*p->at == ';') break;
        text[length++] = *p->at++;
    }
    ++p->at;
    text[length] = 0;
    return text;
}

static void parse_loc(parser* p)
{
    p->file = (int)next_number(p);
    p->file_line = (int)next_number(p);
    while (*p->at && *p->at != '\n') ++p->at;
}

static void parse_targets(parser* p, const char* label)
{
    symbol* s = add_symbol(p, label, SYM_TARGETS);
    char* list = read_instruction(p);
    s = &p->fn->symbols[p->fn->num_symbols - 1];
    s->list = list;
}

static void skip_to_semicolon(parser* p)
{
    while (*p->at && *p->at != ';') {
        if (*p->at++ == '\n') ++p->line;
    }
    take(p, ';');
}

static void parse_body_directive(parser* p)
{
    char name[256];
    next_name(p, name, sizeof name);
    if (strcmp(name, ".reg") == 0) {
        parse_registers(p);
    } else if (strcmp(name, ".loc") == 0) {
        parse_loc(p);
    } else if (strcmp(name, ".pragma") == 0) {
        skip_to_semicolon(p);
    } else if (strcmp(name, ".shared") == 0) {
        parse_variable(p, SYM_SHARED);
        expect(p, ';');
    } else if (strcmp(name, ".local") == 0 || strcmp(name, ".param") == 0) {
        parse_variable(p, SYM_LOCAL);
        expect(p, ';');
    } else {
        fail(p, "directive %s in a body", name);
    }
}

static void open_scope(parser* p)
{
    function* fn = p->fn;
    fn->parent_scope = grown(fn->parent_scope, fn->num_scopes, &fn->max_scopes, sizeof(int));
    fn->parent_scope[fn->num_scopes] = p->scope;
    p->scope = fn->num_scopes++;
}

static void parse_body(parser* p)
{
    int depth = 1;
    char name[512];
    while (depth) {
        skip_space(p);
        if (!*p->at) fail(p, "the text ends inside %s", p->fn->name);
        if (take(p, '{')) {
            open_scope(p);
            ++depth;
            continue;
        }
        if (take(p, '}')) {
            p->scope = p->fn->parent_scope[p->scope];
            --depth;
            continue;
        }
        if (take(p, ';')) continue;
        if (*p->at == '.') {
            parse_body_directive(p);
            continue;
        }
        const char* before = p->at;
        const int line = p->line;
        if (*p->at != '@' && *next_name(p, name, sizeof name) && take(p, ':') && *p->at != ':') {
            skip_space(p);
            if (strncmp(p->at, ".branchtargets", 14) == 0) {
                p->at += 14;
                parse_targets(p, name);
            } else {
                add_symbol(p, name, SYM_LABEL)->at = (uint32_t)p->fn->num_statements;
            }
            continue;
        }
        p->at = before, p->line = line;
        char* text = read_instruction(p);
        add_statement(p, text, line);
        free(text);
    }
}

static void parse_params(parser* p, bool is_result)
{
    function* fn = p->fn;
    expect(p, '(');
    while (!take(p, ')')) {
        char name[64];
        if (strcmp(next_name(p, name, sizeof name), ".param") != 0) {
            fail(p, "a parameter of kind '%s'", name);
        }
        parse_variable(p, fn->is_entry ? SYM_KERNEL_PARAM : SYM_LOCAL);
        const int index = fn->num_symbols - 1;
        if (is_result) {
            fn->result = index;
        } else {
            if (fn->num_params == (int)COUNT(fn->params)) fail(p, "more than 64 parameters");
            fn->params[fn->num_params++] = index;
        }
        take(p, ',');
    }
}

static void place_params(function* fn)
{
    uint64_t at = 0;
    for (int i = 0; fn->is_entry && i < fn->num_params; ++i) {
        symbol* s = &fn->symbols[fn->params[i]];
        at = (at + s->align - 1) / s->align * s->align;
        s->at = (uint32_t)at;
        at += s->bytes;
    }
    fn->param_bytes = (uint32_t)at;
}

// What stands between a function's parameters and its body.
static void parse_limits(parser* p)
{
    char name[256];
    for (;;) {
        skip_space(p);
        if (*p->at != '.') return;
        next_name(p, name, sizeof name);
        uint64_t n = 1;
        skip_space(p);
        while (isdigit((unsigned char)*p->at)) {
            n *= next_number(p);
            take(p, ',');
            skip_space(p);
        }
        if (strcmp(name, ".maxntid") == 0) p->fn->max_threads = (uint32_t)n;
        if (strcmp(name, ".reqntid") == 0) p->fn->required_threads = (uint32_t)n;
        if (strcmp(name, ".pragma") == 0) skip_to_semicolon(p);
    }
}

static void parse_function(parser* p, bool is_entry)
{
    module* mod = p->mod;
    function* fn = calloc(1, sizeof *fn);
    fn->is_entry = is_entry, fn->result = -1, fn->module = mod;
    mod->functions = grown(mod->functions, mod->num_functions, &mod->max_functions,
                           sizeof *mod->functions);
    mod->functions[mod->num_functions++] = fn;
    p->fn = fn;
    p->scope = -1;
    open_scope(p);
    skip_space(p);
    if (!is_entry && *p->at == '(') parse_params(p, true);
    char name[1024];
    next_name(p, name, sizeof name);
    fn->name = copy_text(name, strlen(name));
    skip_space(p);
    if (*p->at == '(') parse_params(p, false);
    place_params(fn);
    parse_limits(p);
    p->file = p->file_line = 0;
    if (take(p, '{')) {
        fn->has_body = true;
        parse_body(p);
    } else {
        expect(p, ';');
    }
    p->fn = NULL;
    p->scope = -1;
}

static void parse_file(parser* p)
{
    module* mod = p->mod;
    const int number = (int)next_number(p);
    expect(p, '"');
    const size_t length = strcspn(p->at, "\"");
    if (number < 0 || number > 9999) fail(p, ".file %d", number);
    if (number >= mod->num_files) {
        mod->files = realloc(mod->files, (size_t)(number + 1) * sizeof *mod->files);
        while (mod->num_files <= number) mod->files[mod->num_files++] = NULL;
    }
    free(mod->files[number]);
    mod->files[number] = copy_text(p->at, length);
    while (*p->at && *p->at != '\n') ++p->at;
}

static void skip_section(parser* p)
{
    while (*p->at && *p->at != '{') ++p->at;
    while (*p->at && *p->at != '}') {
        if (*p->at++ == '\n') ++p->line;
    }
    take(p, '}');
}

static void parse_module(parser* p)
{
    char name[256];
    for (skip_space(p); *p->at; skip_space(p)) {
        if (take(p, ';')) continue;
        next_name(p, name, sizeof name);
        if (strcmp(name, ".version") == 0 || strcmp(name, ".address_size") == 0) {
            next_name(p, name, sizeof name);
        } else if (strcmp(name, ".target") == 0) {
            next_name(p, name, sizeof name);
            p->mod->target = strncmp(name, "sm_", 3) == 0 ? atoi(name + 3) : 0;
            while (take(p, ',')) next_name(p, name, sizeof name);
        } else if (strcmp(name, ".file") == 0) {
            parse_file(p);
        } else if (strcmp(name, ".section") == 0) {
            skip_section(p);
        } else if (strcmp(name, ".entry") == 0 || strcmp(name, ".func") == 0) {
            parse_function(p, name[1] == 'e');
        } else if (strcmp(name, ".global") == 0 || strcmp(name, ".const") == 0) {
            parse_variable(p, SYM_GLOBAL)->is_const = name[1] == 'c';
            expect(p, ';');
        } else if (strcmp(name, ".shared") == 0) {
            parse_variable(p, SYM_SHARED);
            expect(p, ';');
        } else if (strcmp(name, ".visible") != 0 && strcmp(name, ".extern") != 0 &&
                   strcmp(name, ".weak") != 0 && strcmp(name, ".common") != 0) {
            fail(p, "'%s' at the module's level", *name ? name : p->at);
        }
    }
    if (!p->mod->target) fail(p, "no .target");
}

// NULL with a reason in log, or a module to decode.
module* module_parse(const char* text, char* log, size_t log_size)
{
    parser* p = calloc(1, sizeof *p);
    module* volatile mod = calloc(1, sizeof *mod);
    p->mod = mod, p->at = text, p->line = 1, p->scope = -1;
    if (setjmp(p->stop)) {
        snprintf(log, log_size, "%s", mod->log);
        free(p);
        module_free(mod);
        return NULL;
    }
    parse_module(p);
    free(p);
    return mod;
}

static void free_symbols(symbol* symbols, int count)
{
    for (int i = 0; i < count; ++i) {
        free(symbols[i].name);
        free(symbols[i].init);
        free(symbols[i].list);
        for (relocation *r = symbols[i].relocations, *next; r; r = next) {
            next = r->next;
            free(r->name);
            free(r);
        }
    }
    free(symbols);
}

static void free_function(function* fn)
{
    free_symbols(fn->symbols, fn->num_symbols);
    for (int i = 0; i < fn->num_statements; ++i) {
        statement* s = &fn->statements[i];
        free(s->guard);
        free(s->opcode);
        for (int k = 0; k < s->num_operands; ++k) free(s->operand[k]);
    }
    free(fn->statements);
    free(fn->parent_scope);
    free(fn->constants);
    free(fn->specials);
    free(fn->name);
    free(fn);
}

void module_free(module* mod)
{
    if (!mod) return;
    for (uint32_t i = 0; i < mod->num_code; ++i) {
        insn* one = &mod->code[i];
        free(one->uses);
        free(one->defs);
        free(one->targets);
        for (int k = 0; k < MAX_OPERANDS; ++k) free(one->o[k].list);
    }
    free(mod->code);
    for (int i = 0; i < mod->num_functions; ++i) free_function(mod->functions[i]);
    free(mod->functions);
    free_symbols(mod->symbols, mod->num_symbols);
    for (int i = 0; i < mod->num_files; ++i) free(mod->files[i]);
    free(mod->files);
    free(mod->text);
    free(mod);
}
