// decode.c -- statements into insn: places for registers, operands, handlers, branch targets.
//
// Each entry's registers begin after the same first words of the file; device functions lie behind
// the largest entry, so that a call needs no frames.  Recursion is therefore refused.

#include "sim.h"

#include <ctype.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TRASH_WORDS = 64, ALWAYS_DEFINED = 0 };

typedef struct decoder {
    module*          mod;
    function*        fn;
    const statement* from;
    const words*     m;
    insn*            out;
} decoder;

// TYPES AND WORDS

static const struct { const char* name; type t; } type_table[] = {
    { "pred", T_PRED }, { "b8", T_B8 }, { "b16", T_B16 }, { "b32", T_B32 }, { "b64", T_B64 },
    { "b128", T_B128 }, { "u8", T_U8 }, { "u16", T_U16 }, { "u32", T_U32 }, { "u64", T_U64 },
    { "s8", T_S8 }, { "s16", T_S16 }, { "s32", T_S32 }, { "s64", T_S64 }, { "f16", T_F16 },
    { "f16x2", T_F16X2 }, { "bf16", T_BF16 }, { "bf16x2", T_BF16X2 }, { "f32", T_F32 },
    { "f64", T_F64 }, { "e4m3", T_E4M3 }, { "e5m2", T_E5M2 }, { "e4m3x2", T_E4M3X2 },
    { "e5m2x2", T_E5M2X2 }, { "u16x2", T_U16X2 }, { "s16x2", T_S16X2 }, { "f32x2", T_F32X2 },
};

type type_of_name(const char* name)
{
    for (size_t i = 0; i < COUNT(type_table); ++i) {
        if (strcmp(type_table[i].name, name) == 0) return type_table[i].t;
    }
    return T_NONE;
}

uint32_t type_bytes(type t)
{
    static const uint8_t bytes[] = {
        [T_PRED] = 1, [T_B8] = 1, [T_B16] = 2, [T_B32] = 4, [T_B64] = 8, [T_B128] = 16,
        [T_U8] = 1, [T_U16] = 2, [T_U32] = 4, [T_U64] = 8, [T_S8] = 1, [T_S16] = 2, [T_S32] = 4,
        [T_S64] = 8, [T_F16] = 2, [T_F16X2] = 4, [T_BF16] = 2, [T_BF16X2] = 4, [T_F32] = 4,
        [T_F64] = 8, [T_E4M3] = 1, [T_E5M2] = 1, [T_E4M3X2] = 2, [T_E5M2X2] = 2, [T_U16X2] = 4,
        [T_S16X2] = 4, [T_F32X2] = 8,
    };
    return bytes[t];
}

bool type_is_signed(type t)
{
    return t == T_S8 || t == T_S16 || t == T_S32 || t == T_S64 || t == T_S16X2;
}

bool has(const words* m, const char* word)
{
    for (int i = 0; i < m->num_words; ++i) {
        if (strcmp(m->word[i], word) == 0) return true;
    }
    return false;
}

static bool read_words(words* m, const char* opcode)
{
    memset(m, 0, sizeof *m);
    if (strlen(opcode) >= sizeof m->text) return false;
    strcpy(m->text, opcode);
    char* save;
    m->base = strtok_r(m->text, ".", &save);
    if (!m->base) return false;
    for (char* word; (word = strtok_r(NULL, ".", &save));) {
        const type t = type_of_name(word);
        if (t != T_NONE) {
            if (m->num_types == (int)COUNT(m->types)) return false;
            m->types[m->num_types++] = t;
        } else {
            if (m->num_words == (int)COUNT(m->word)) return false;
            m->word[m->num_words++] = word;
        }
    }
    return true;
}

// Whether each word stands in a space-separated list.
static bool all_allowed(const words* m, const char* allowed)
{
    for (int i = 0; i < m->num_words; ++i) {
        const size_t length = strlen(m->word[i]);
        bool found = false;
        for (const char* at = allowed; (at = strstr(at, m->word[i])); ++at) {
            if ((at == allowed || at[-1] == ' ') && (at[length] == ' ' || !at[length])) {
                found = true;
                break;
            }
        }
        if (!found) return false;
    }
    return true;
}

// SYMBOLS

// Of %r<n> the number after the prefix, or -1.
static int64_t number_in(const symbol* s, const char* name)
{
    if (!s->count) return strcmp(s->name, name) == 0 ? 0 : -1;
    const size_t length = strlen(s->name);
    if (strncmp(s->name, name, length) != 0 || !isdigit((unsigned char)name[length])) return -1;
    char* end;
    const unsigned long n = strtoul(name + length, &end, 10);
    return *end || n >= s->count ? -1 : (int64_t)n;
}

symbol* find_symbol(const module* mod, const function* fn, const char* name, int scope)
{
    for (int at = scope; fn && at >= 0; at = fn->parent_scope[at]) {
        for (int i = 0; i < fn->num_symbols; ++i) {
            symbol* s = &fn->symbols[i];
            if (s->scope == at && s->name[0] == name[0] && number_in(s, name) >= 0) return s;
        }
    }
    for (int i = 0; i < mod->num_symbols; ++i) {
        if (strcmp(mod->symbols[i].name, name) == 0) return &mod->symbols[i];
    }
    return NULL;
}

function* find_function(const module* mod, const char* name)
{
    function* found = NULL;
    for (int i = 0; i < mod->num_functions; ++i) {
        function* fn = mod->functions[i];
        if (strcmp(fn->name, name) == 0 && (!found || fn->has_body)) found = fn;
    }
    return found;
}

static bool refuse(decoder* d, const char* format, ...)
    __attribute__((format(printf, 2, 3)));

static bool refuse(decoder* d, const char* format, ...)
{
    char why[512], text[256];
    va_list list;
    va_start(list, format);
    vsnprintf(why, sizeof why, format, list);
    va_end(list);
    int n = snprintf(text, sizeof text, "%s", d->from->opcode);
    for (int i = 0; i < d->from->num_operands && n < (int)sizeof text; ++i) {
        n += snprintf(text + n, sizeof text - (size_t)n, "%s %s", i ? "," : "",
                      d->from->operand[i]);
    }
    snprintf(d->mod->log, sizeof d->mod->log, "PTX line %d: %s: %s", d->from->line, text, why);
    return false;
}

// PLACES

static uint32_t align_to(uint32_t at, uint32_t align)
{
    return align < 2 ? at : (at + align - 1) / align * align;
}

static uint32_t new_place(function* fn, uint8_t width)
{
    const uint32_t at = fn->first_word + fn->num_words;
    fn->num_words += width == 8 ? 64 : 32;
    return at;
}

static void place_registers(function* fn)
{
    for (int i = 0; i < fn->num_symbols; ++i) {
        symbol* s = &fn->symbols[i];
        if (s->kind != SYM_REG) continue;
        const uint32_t n = s->count ? s->count : 1;
        s->id = fn->first_id + fn->num_ids;
        fn->num_ids += n;
        if (s->type == T_PRED) {
            s->at = fn->first_pred + fn->num_preds;
            fn->num_preds += n;
        } else {
            s->at = fn->first_word + fn->num_words;
            fn->num_words += n * (type_bytes(s->type) == 8 ? 64 : 32);
        }
    }
}

static void place_locals(function* fn)
{
    for (int i = 0; i < fn->num_symbols; ++i) {
        symbol* s = &fn->symbols[i];
        if (s->kind != SYM_LOCAL) continue;
        fn->local_bytes = align_to(fn->local_bytes, s->align);
        s->at = fn->local_first + fn->local_bytes;
        fn->local_bytes += (uint32_t)s->bytes;
    }
    fn->local_bytes = align_to(fn->local_bytes, 16);
}

static uint32_t place_shared(symbol* symbols, int count, uint32_t at, bool* dynamic)
{
    for (int i = 0; i < count; ++i) {
        symbol* s = &symbols[i];
        if (s->kind != SYM_SHARED) continue;
        if (!s->bytes) {
            *dynamic = true;
            continue;
        }
        at = align_to(at, s->align);
        s->at = SHARED_FIRST + at;
        at += (uint32_t)s->bytes;
    }
    return at;
}

static void set_dynamic(symbol* symbols, int count, uint32_t at)
{
    for (int i = 0; i < count; ++i) {
        if (symbols[i].kind == SYM_SHARED && !symbols[i].bytes) symbols[i].at = SHARED_FIRST + at;
    }
}

static void place_all_shared(module* mod)
{
    bool dynamic = false;
    uint32_t at = place_shared(mod->symbols, mod->num_symbols, 0, &dynamic);
    for (int i = 0; i < mod->num_functions; ++i) {
        function* fn = mod->functions[i];
        if (!fn->is_entry) at = place_shared(fn->symbols, fn->num_symbols, at, &dynamic);
    }
    mod->shared_bytes = at;
    uint32_t most = at;
    for (int i = 0; i < mod->num_functions; ++i) {
        function* fn = mod->functions[i];
        if (!fn->is_entry) continue;
        fn->shared_bytes = place_shared(fn->symbols, fn->num_symbols, at, &dynamic);
        if (fn->shared_bytes > most) most = fn->shared_bytes;
    }
    most = align_to(most, 128);
    mod->dynamic_at = dynamic ? most : 0;
    set_dynamic(mod->symbols, mod->num_symbols, most);
    for (int i = 0; i < mod->num_functions; ++i) {
        set_dynamic(mod->functions[i]->symbols, mod->functions[i]->num_symbols, most);
    }
}

// OPERANDS

static void put_constant(function* fn, operand* o, uint64_t value, uint8_t width)
{
    o->kind = OPERAND_REG, o->width = width, o->bits = (uint8_t)(width * 8), o->id = ALWAYS_DEFINED;
    if (width == 4) value &= 0xffffffffu;
    for (int i = 0; i < fn->num_constants; ++i) {
        if (fn->constants[i].value == value && fn->constants[i].width == width) {
            o->at = fn->constants[i].at;
            return;
        }
    }
    if (fn->num_constants == fn->max_constants) {
        fn->max_constants = fn->max_constants ? 2 * fn->max_constants : 16;
        fn->constants = realloc(fn->constants, (size_t)fn->max_constants * sizeof *fn->constants);
    }
    o->at = new_place(fn, width);
    fn->constants[fn->num_constants++] = (constant){ o->at, 0, value, width };
}

static int special_of_name(const char* name)
{
    static const struct { const char* name; int which; } one[] = {
        { "%laneid", SPECIAL_LANEID }, { "%warpid", SPECIAL_WARPID },
        { "%nwarpid", SPECIAL_NWARPID }, { "%lanemask_eq", SPECIAL_LANEMASK_EQ },
        { "%lanemask_lt", SPECIAL_LANEMASK_LT }, { "%lanemask_le", SPECIAL_LANEMASK_LE },
        { "%lanemask_gt", SPECIAL_LANEMASK_GT }, { "%lanemask_ge", SPECIAL_LANEMASK_GE },
        { "%smid", SPECIAL_SMID }, { "%nsmid", SPECIAL_NSMID }, { "%gridid", SPECIAL_GRIDID },
        { "%dynamic_smem_size", SPECIAL_DYNAMIC_SMEM },
        { "%total_smem_size", SPECIAL_TOTAL_SMEM }, { "%clock", SPECIAL_CLOCK },
        { "%clock_hi", SPECIAL_CLOCK_HI }, { "%clock64", SPECIAL_CLOCK64 },
        { "%globaltimer", SPECIAL_GLOBALTIMER },
    };
    static const struct { const char* name; int which; } three[] = {
        { "%tid.", SPECIAL_TID }, { "%ntid.", SPECIAL_NTID }, { "%ctaid.", SPECIAL_CTAID },
        { "%nctaid.", SPECIAL_NCTAID },
    };
    for (size_t i = 0; i < COUNT(one); ++i) {
        if (strcmp(one[i].name, name) == 0) return one[i].which;
    }
    for (size_t i = 0; i < COUNT(three); ++i) {
        const size_t length = strlen(three[i].name);
        if (strncmp(three[i].name, name, length) == 0 && strchr("xyz", name[length])) {
            return three[i].which + name[length] - 'x';
        }
    }
    return -1;
}

static void put_special(function* fn, operand* o, int which)
{
    o->kind = OPERAND_REG, o->id = ALWAYS_DEFINED;
    o->width = which == SPECIAL_CLOCK64 || which == SPECIAL_GLOBALTIMER ? 8 : 4;
    o->bits = (uint8_t)(o->width * 8);
    for (int i = 0; i < fn->num_specials; ++i) {
        if (fn->specials[i].which == which) {
            o->at = fn->specials[i].at;
            return;
        }
    }
    if (fn->num_specials == fn->max_specials) {
        fn->max_specials = fn->max_specials ? 2 * fn->max_specials : 16;
        fn->specials = realloc(fn->specials, (size_t)fn->max_specials * sizeof *fn->specials);
    }
    o->at = new_place(fn, o->width);
    fn->specials[fn->num_specials++] = (special){ o->at, 0, which };
}

static void put_register(operand* o, const symbol* s, const char* name)
{
    const uint32_t n = (uint32_t)number_in(s, name);
    const uint32_t bytes = type_bytes(s->type);
    o->id = s->id + n;
    if (s->type == T_PRED) {
        o->kind = OPERAND_PRED, o->at = s->at + n;
        return;
    }
    o->kind = OPERAND_REG, o->bits = (uint8_t)(bytes * 8), o->width = bytes == 8 ? 8 : 4;
    o->at = s->at + n * (bytes == 8 ? 64 : 32);
}

// Where a variable is, as a number in its space's addresses.
static uint64_t symbol_offset(const symbol* s)
{
    return s->kind == SYM_GLOBAL ? s->address : s->at;
}

static space symbol_space(const symbol* s)
{
    switch (s->kind) {
    case SYM_GLOBAL: return SPACE_GLOBAL;
    case SYM_SHARED: return SPACE_SHARED;
    case SYM_KERNEL_PARAM: return SPACE_PARAM;
    default: return SPACE_LOCAL;
    }
}

// [register], [register+n], [variable+n], [n]
static bool put_address(decoder* d, operand* o, const char* text)
{
    char name[512];
    size_t length = 0;
    while (*text == '[' || *text == ' ') ++text;
    while (text[length] && !strchr("+] ", text[length])) ++length;
    snprintf(name, sizeof name, "%.*s", (int)length, text);
    text += length;
    while (*text == ' ') ++text;
    int64_t offset = 0;
    if (*text == '+') {
        char number[64];
        ++text;
        while (*text == ' ') ++text;
        snprintf(number, sizeof number, "%.*s", (int)strcspn(text, "] "), text);
        uint64_t value;
        if (!parse_number(number, T_S64, &value)) return refuse(d, "offset '%s'", number);
        offset = (int64_t)value;
    }
    uint64_t value;
    if (parse_number(name, T_U64, &value)) {
        put_constant(d->fn, o, value + (uint64_t)offset, 8);
    } else {
        const symbol* s = find_symbol(d->mod, d->fn, name, d->from->scope);
        if (!s) return refuse(d, "'%s' is not declared", name);
        if (s->kind == SYM_REG) {
            put_register(o, s, name);
            o->offset = offset;
        } else {
            put_constant(d->fn, o, symbol_offset(s) + (uint64_t)offset, 8);
            o->space = symbol_space(s);
        }
    }
    o->kind = OPERAND_ADDRESS;
    return true;
}

static bool put_operand(decoder* d, operand* o, const char* text, type as);

static bool put_vector(decoder* d, operand* o, const char* text, type as)
{
    o->kind = OPERAND_VECTOR;
    o->list = calloc(8, sizeof *o->list);
    while (*text == '{' || *text == ' ') ++text;
    while (*text && *text != '}') {
        char name[256];
        const size_t length = strcspn(text, ",} ");
        snprintf(name, sizeof name, "%.*s", (int)length, text);
        if (o->count == 8) return refuse(d, "more than 8 elements");
        if (!put_operand(d, &o->list[o->count++], name, as)) return false;
        text += length;
        while (*text == ',' || *text == ' ') ++text;
    }
    return true;
}

static bool put_operand(decoder* d, operand* o, const char* text, type as)
{
    uint64_t value;
    if (*text == '!') {
        o->negate = true;
        ++text;
        while (*text == ' ') ++text;
    }
    if (strcmp(text, "_") == 0) {
        o->kind = OPERAND_REG, o->sink = true, o->width = type_bytes(as) == 8 ? 8 : 4;
        o->bits = (uint8_t)(o->width * 8);
        return true;
    }
    if (*text == '{') return put_vector(d, o, text, as);
    if (*text == '[') return put_address(d, o, text);
    if (parse_number(text, as, &value)) {
        const uint32_t bytes = type_bytes(as);
        if (bytes == 2) value &= 0xffff;
        put_constant(d->fn, o, value, bytes == 8 ? 8 : 4);
        return true;
    }
    const symbol* s = find_symbol(d->mod, d->fn, text, d->from->scope);
    if (s && s->kind == SYM_REG) {
        put_register(o, s, text);
        return true;
    }
    const int which = special_of_name(text);
    if (which >= 0) {
        put_special(d->fn, o, which);
        if (which >= SPECIAL_CLOCK) d->out->sub2 = (uint8_t)which;
        return true;
    }
    if (strcmp(text, "WARP_SZ") == 0) {
        put_constant(d->fn, o, 32, 4);
        return true;
    }
    char name[512];
    const char* plus = strchr(text, '+');
    snprintf(name, sizeof name, "%.*s", plus ? (int)(plus - text) : 500, text);
    if (plus && !parse_number(plus + 1, T_U64, &value)) return refuse(d, "'%s'", text);
    s = find_symbol(d->mod, d->fn, name, d->from->scope);
    if (!s || s->kind == SYM_LABEL) return refuse(d, "'%s' is not declared", text);
    put_constant(d->fn, o, symbol_offset(s) + (plus ? value : 0), type_bytes(as) == 8 ? 8 : 4);
    o->space = symbol_space(s);
    return true;
}

// The type of an operand, for the width of an immediate.
static type operand_type(const words* m, int k)
{
    const char* base = m->base;
    const type first = m->num_types ? m->types[0] : T_B32;
    const type last = m->num_types ? m->types[m->num_types - 1] : T_B32;
    if (strcmp(base, "shl") == 0 || strcmp(base, "shr") == 0 || strcmp(base, "shf") == 0) {
        return k >= 2 && strcmp(base, "shf") != 0 ? T_U32 : first;
    }
    if (strcmp(base, "bfe") == 0 && k >= 2) return T_U32;
    if (strcmp(base, "bfi") == 0 && k >= 3) return T_U32;
    if (strcmp(base, "cvt") == 0 || strcmp(base, "set") == 0 || strcmp(base, "slct") == 0) {
        return strcmp(base, "slct") == 0 ? (k == 3 ? last : first) : (k ? last : first);
    }
    if (has(m, "wide") && (k == 0 || k == 3)) {
        return type_bytes(first) == 4 ? (type_is_signed(first) ? T_S64 : T_U64) : T_U32;
    }
    if (strcmp(base, "shfl") == 0 && k >= 2) return T_U32;
    if (strcmp(base, "match") == 0 && k == 2) return T_U32;
    if (strcmp(base, "redux") == 0 && k == 2) return T_U32;
    if (strcmp(base, "dp4a") == 0 || strcmp(base, "dp2a") == 0) return T_B32;
    if (strcmp(base, "mov") == 0 && first == T_PRED) return T_B32;
    return first;
}

static void add_id(uint32_t** list, uint16_t* count, uint32_t id)
{
    if (id == ALWAYS_DEFINED) return;
    *list = realloc(*list, (*count + 1u) * sizeof **list);
    (*list)[(*count)++] = id;
}

static void note_use(insn* i, const operand* o)
{
    if (o->kind == OPERAND_VECTOR) {
        for (int k = 0; k < o->count; ++k) note_use(i, &o->list[k]);
    } else if (o->kind != OPERAND_NONE && !o->sink) {
        add_id(&i->uses, &i->num_uses, o->id);
    }
}

static void note_def(insn* i, const operand* o)
{
    if (o->kind == OPERAND_VECTOR) {
        for (int k = 0; k < o->count; ++k) note_def(i, &o->list[k]);
    } else if (o->kind != OPERAND_NONE && !o->sink) {
        add_id(&i->defs, &i->num_defs, o->id);
    }
}

// BRANCHES AND CALLS

static bool label_target(decoder* d, const char* name, uint32_t* target)
{
    const symbol* s = find_symbol(d->mod, d->fn, name, d->from->scope);
    if (!s || s->kind != SYM_LABEL) return refuse(d, "no label '%s'", name);
    *target = d->fn->code_first + s->at;
    return true;
}

static bool decode_branch(decoder* d)
{
    insn* i = d->out;
    if (strcmp(d->m->base, "bra") == 0) {
        return d->from->num_operands == 1 && label_target(d, d->from->operand[0], &i->target);
    }
    if (d->from->num_operands != 2) return refuse(d, "two operands");
    if (!put_operand(d, &i->o[0], d->from->operand[0], T_U32)) return false;
    note_use(i, &i->o[0]);
    const symbol* s = find_symbol(d->mod, d->fn, d->from->operand[1], d->from->scope);
    if (!s || s->kind != SYM_TARGETS) return refuse(d, "no .branchtargets");
    for (const char* at = s->list; *at;) {
        char name[256];
        while (*at == ' ' || *at == ',') ++at;
        const size_t length = strcspn(at, ", ");
        if (!length) break;
        snprintf(name, sizeof name, "%.*s", (int)length, at);
        at += length;
        i->targets = realloc(i->targets, (i->num_targets + 1) * sizeof *i->targets);
        if (!label_target(d, name, &i->targets[i->num_targets++])) return false;
    }
    return true;
}

// Three numbers a parameter: to, from, bytes, in local memory.
static bool add_argument(decoder* d, const char* name, const symbol* formal, bool is_result)
{
    insn* i = d->out;
    const symbol* s = find_symbol(d->mod, d->fn, name, d->from->scope);
    if (!s || s->kind != SYM_LOCAL) return refuse(d, "'%s' is not a .param variable", name);
    if (s->bytes != formal->bytes) return refuse(d, "'%s' has another size", name);
    const uint32_t n = 3 * i->num_targets;
    i->targets = realloc(i->targets, (n + 3) * sizeof *i->targets);
    i->targets[n] = is_result ? s->at : formal->at;
    i->targets[n + 1] = is_result ? formal->at : s->at;
    i->targets[n + 2] = (uint32_t)s->bytes;
    ++i->num_targets;
    return true;
}

// The names in a parenthesis, each matched with a formal parameter.
static bool decode_arguments(decoder* d, const char* list, const function* callee, bool is_result)
{
    int k = 0;
    const int expected = is_result ? callee->result >= 0 : callee->num_params;
    while (*list) {
        char name[256];
        while (*list && strchr("(), ", *list)) ++list;
        const size_t length = strcspn(list, "(), ");
        if (!length) break;
        snprintf(name, sizeof name, "%.*s", (int)length, list);
        list += length;
        if (k == expected) return refuse(d, "too many arguments");
        const int index = is_result ? callee->result : callee->params[k];
        if (!add_argument(d, name, &callee->symbols[index], is_result)) return false;
        ++k;
    }
    return k == expected || refuse(d, "too few arguments");
}

// targets: the parameters (sub of them), then the results.
static bool decode_call(decoder* d)
{
    const statement* s = d->from;
    const int name_at = s->num_operands && s->operand[0][0] == '(' ? 1 : 0;
    if (s->num_operands <= name_at) return refuse(d, "no function");
    const char* name = s->operand[name_at];
    d->out->callee = find_function(d->mod, name);
    if (!d->out->callee) return refuse(d, "no function '%s'", name);
    if (!d->out->callee->has_body && strcmp(name, "__assertfail") != 0 &&
        strcmp(name, "vprintf") != 0) {
        return refuse(d, "'%s' has no body", name);
    }
    const char* params = s->num_operands > name_at + 1 ? s->operand[name_at + 1] : "";
    if (!decode_arguments(d, params, d->out->callee, false)) return false;
    d->out->sub = (uint8_t)d->out->num_targets;
    d->out->target = d->out->callee->code_first;
    return !name_at || decode_arguments(d, s->operand[0], d->out->callee, true);
}

// INSTRUCTIONS

static const op_entry* const all_ops[] = {
    int_ops, float_ops, convert_ops, compare_ops, memory_ops, atomic_ops, async_ops, warp_ops,
    control_ops, mma_ops
};

// What an architecture has from: the first sm, for a piece of an opcode.
static int lowest_target(const words* m, const char* opcode)
{
    static const struct { const char* piece; int sm; } table[] = {
        { "cp.async", 80 }, { "m16n8k16", 80 }, { "m16n8k32", 80 }, { "redux", 80 },
        { "stmatrix", 90 }, { "griddepcontrol", 90 }, { "e4m3", 89 }, { "e5m2", 89 },
        { "bf16", 80 }, { "xorsign", 86 }, { ".u16x2", 90 }, { ".s16x2", 90 },
        { ".f32x2", 100 }, { ".f16x2.f32", 80 },
    };
    int lowest = 0;
    for (size_t i = 0; i < COUNT(table); ++i) {
        if (strstr(opcode, table[i].piece) && table[i].sm > lowest) lowest = table[i].sm;
    }
    const bool half = m->num_types && type_is_half(m->types[0]);
    const bool bf16 = half && (m->types[0] == T_BF16 || m->types[0] == T_BF16X2);
    if (half && (strcmp(m->base, "min") == 0 || strcmp(m->base, "max") == 0) && lowest < 80) {
        lowest = 80;
    }
    if (bf16 && (strcmp(m->base, "add") == 0 || strcmp(m->base, "sub") == 0 ||
                 strcmp(m->base, "mul") == 0 || strcmp(m->base, "setp") == 0)) {
        lowest = 90;
    }
    return lowest;
}

static const op_entry* find_op(decoder* d)
{
    for (size_t t = 0; t < COUNT(all_ops); ++t) {
        for (const op_entry* op = all_ops[t]; op->base; ++op) {
            if (strcmp(op->base, d->m->base) != 0 || !all_allowed(d->m, op->allowed)) continue;
            d->out->sub = d->out->sub2 = 0;
            if ((d->out->run = op->choose(d->m, d->out))) return op;
        }
    }
    return NULL;
}

static void read_common(const words* m, insn* i)
{
    i->type = m->num_types ? m->types[0] : T_NONE;
    i->type2 = m->num_types > 1 ? m->types[1] : i->type;
    i->ftz = has(m, "ftz");
    i->sat = has(m, "sat");
    i->relu = has(m, "relu");
    i->round = has(m, "rz") || has(m, "rzi") ? ROUND_ZERO : has(m, "rm") || has(m, "rmi") ?
        ROUND_DOWN : has(m, "rp") || has(m, "rpi") ? ROUND_UP : has(m, "rna") ? ROUND_AWAY :
        ROUND_NEAREST;
    i->space = has(m, "shared") || has(m, "shared::cta") ? SPACE_SHARED : has(m, "local") ?
        SPACE_LOCAL : has(m, "param") ? SPACE_PARAM : has(m, "global") || has(m, "const") ?
        SPACE_GLOBAL : SPACE_GENERIC;
}

// d|p: the second goes last.
static bool put_all(decoder* d, const op_entry* op)
{
    insn* i = d->out;
    for (int k = 0; k < d->from->num_operands; ++k) {
        char text[512];
        snprintf(text, sizeof text, "%s", d->from->operand[k]);
        char* bar = k == 0 ? strchr(text, '|') : NULL;
        if (bar) {
            char* second = bar + 1;
            while (bar > text && bar[-1] == ' ') --bar;
            *bar = 0;
            while (*second == ' ') ++second;
            if (!put_operand(d, &i->o[MAX_OPERANDS - 1], second, T_B32)) return false;
            note_def(i, &i->o[MAX_OPERANDS - 1]);
        }
        if (!put_operand(d, &i->o[k], text, operand_type(d->m, k))) return false;
        if (k < op->num_dst) {
            note_def(i, &i->o[k]);
        } else if (strcmp(d->m->base, "mov") != 0) {
            note_use(i, &i->o[k]);
        }
        // A parameter of a device function lies in local memory.
        if (i->space == SPACE_PARAM && i->o[k].kind == OPERAND_ADDRESS && !d->fn->is_entry &&
            i->o[k].space != SPACE_PARAM) i->space = SPACE_LOCAL;
        if (i->space == SPACE_PARAM && i->o[k].space == SPACE_LOCAL) i->space = SPACE_LOCAL;
    }
    return true;
}

static bool decode_guard(decoder* d)
{
    const char* text = d->from->guard;
    d->out->guard = -1;
    if (!text) return true;
    operand o = { OPERAND_NONE, 0, false, false, 0, 0, 0, 0, SPACE_GENERIC, 0, NULL };
    if (!put_operand(d, &o, text, T_PRED) || o.kind != OPERAND_PRED) {
        return refuse(d, "guard '%s'", text);
    }
    d->out->guard = (int32_t)o.at, d->out->guard_id = o.id, d->out->guard_not = o.negate;
    return true;
}

handler run_clock_of(void);

static bool decode_statement(decoder* d, const statement* s, insn* out)
{
    words m;
    d->from = s, d->m = &m, d->out = out;
    out->fn = d->fn, out->from = s;
    if (!read_words(&m, s->opcode)) return refuse(d, "not an opcode");
    if (!decode_guard(d)) return false;
    read_common(&m, out);
    const op_entry* op = find_op(d);
    if (!op) return refuse(d, "no such instruction here");
    out->stat_class = op->stat_class;
    const int lowest = lowest_target(&m, s->opcode);
    if (lowest > d->mod->target) {
        return refuse(d, "needs sm_%d, the target is sm_%d", lowest, d->mod->target);
    }
    if (strcmp(m.base, "bra") == 0 || strcmp(m.base, "brx") == 0) return decode_branch(d);
    if (strcmp(m.base, "call") == 0) return decode_call(d);
    if (!put_all(d, op)) return false;
    if (out->sub2 >= SPECIAL_CLOCK && strcmp(m.base, "mov") == 0) out->run = run_clock_of();
    return true;
}

static bool decode_function(module* mod, function* fn)
{
    decoder d = { mod, fn, NULL, NULL, NULL };
    for (int i = 0; i < fn->num_statements; ++i) {
        if (!decode_statement(&d, &fn->statements[i], &fn->code[i])) return false;
    }
    // The end of the text is a return.
    static const statement end = { NULL, (char*)(uintptr_t)"ret", { NULL }, 0, 0, 0, 0, 0 };
    return decode_statement(&d, &end, &fn->code[fn->num_statements]);
}

// 1 in the path, 2 done.
static bool is_recursive(function* fn)
{
    if (fn->visit) return fn->visit == 1;
    fn->visit = 1;
    for (int i = 0; i < fn->num_statements; ++i) {
        if (fn->code[i].callee && is_recursive(fn->code[i].callee)) return true;
    }
    fn->visit = 2;
    return false;
}

static bool decode_in_order(module* mod, bool entries)
{
    for (int k = 0; k < mod->num_functions; ++k) {
        function* fn = mod->functions[k];
        if (!fn->has_body || fn->is_entry != entries) continue;
        fn->first_word = entries ? TRASH_WORDS : mod->num_words;
        fn->first_id = entries ? 1 : mod->num_ids;
        fn->first_pred = entries ? 0 : mod->num_preds;
        place_registers(fn);
        if (!decode_function(mod, fn)) return false;
        const uint32_t end_word = fn->first_word + fn->num_words;
        const uint32_t end_id = fn->first_id + fn->num_ids;
        const uint32_t end_pred = fn->first_pred + fn->num_preds;
        if (end_word > mod->num_words) mod->num_words = end_word;
        if (end_id > mod->num_ids) mod->num_ids = end_id;
        if (end_pred > mod->num_preds) mod->num_preds = end_pred;
    }
    return true;
}

bool module_decode(module* mod)
{
    place_all_shared(mod);
    for (int k = 0; k < mod->num_functions; ++k) {
        function* fn = mod->functions[k];
        fn->code_first = mod->num_code;
        if (fn->has_body) mod->num_code += (uint32_t)fn->num_statements + 1;
        if (fn->is_entry) place_locals(fn);
        if (fn->is_entry && fn->local_bytes > mod->local_bytes) mod->local_bytes = fn->local_bytes;
    }
    for (int k = 0; k < mod->num_functions; ++k) {
        function* fn = mod->functions[k];
        if (fn->is_entry) continue;
        fn->local_first = mod->local_bytes;
        place_locals(fn);
        mod->local_bytes += fn->local_bytes;
    }
    mod->num_words = TRASH_WORDS, mod->num_ids = 1;
    mod->code = calloc(mod->num_code + 1, sizeof *mod->code);
    for (int k = 0; k < mod->num_functions; ++k) {
        mod->functions[k]->code = mod->code + mod->functions[k]->code_first;
    }
    if (!decode_in_order(mod, true) || !decode_in_order(mod, false)) return false;
    for (int k = 0; k < mod->num_functions; ++k) {
        if (mod->functions[k]->has_body && is_recursive(mod->functions[k])) {
            snprintf(mod->log, sizeof mod->log, "%s: recursion", mod->functions[k]->name);
            return false;
        }
    }
    return true;
}
