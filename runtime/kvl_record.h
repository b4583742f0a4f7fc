// kvl_record.h -- the calibrated numbers that codecs need: names, shapes, order, and who has them.
//
// A part says which tables its arithmetic reads (kvl_table.h).  For each layer, side and KV head
// they lie in one record of floats: in stage order, then as the part declares them, each from a
// multiple of KVL__TABLE_UNIT floats on.  gen/codec.lua derives the same offsets.

#ifndef KVL_RECORD_H
#define KVL_RECORD_H

#include "kvl_config.h"

enum { KVL__TABLE_UNIT = 16, KVL__SIDE_BYTES = 256 };

// What a layer asks for: numbers [num_kv_heads, shape...] of one side.
typedef struct kvl__wanted_table {
    int32_t layer, side, num_kv_heads, rank;
    int32_t of_layer;                    // kvl__table_desc.of_layer
    int64_t shape[KVL__TABLE_RANK];
    char    name[KVL__SIDE_BYTES + 32];  // "mean"; of a table that depends on the composition, its
                                         // name, '@' and the side's text, as far as it depends
} kvl__wanted_table;

// Who has tables.  A kvl_calibration begins with one.
typedef struct kvl__table_source {
    // Sets *out to the numbers, which stay the source's; NULL: it has none of that name.  Another
    // shape is an error.
    kvl_status (*find)(kvl_context* ctx, const struct kvl__table_source* source,
                       const kvl__wanted_table* wanted, const float** out);
    // Whether the numbers are of the model that a cache is made for.  NULL: they are.
    kvl_status (*check)(kvl_context* ctx, const struct kvl__table_source* source,
                        const kvl_cache_desc* desc);
    int64_t context;                   // tokens of the texts it was made with; 0: not known
} kvl__table_source;

// A side as text, whatever preset it came from: bits, group and the words that are not the
// default, in stage order, with their numbers.
KVL__FN void kvl__side_text(const kvl__codec* c, char* text, size_t size)
{
    *text = 0;
    kvl__append_text(text, size, "b%d", c->bits);
    if (c->group_size) kvl__append_text(text, size, ",g%d", c->group_size);
    for (int stage = 0; stage < KVL__NUM_STAGES; ++stage) {
        if (c->words[stage] == 0 && c->numbers[stage] == 0) continue;
        kvl__append_text(text, size, ",%s", kvl__word_of(c, stage)->name);
        if (c->numbers[stage]) kvl__append_text(text, size, "%d", c->numbers[stage]);
    }
}

// The part of it that a table depends on (kvl__table_desc.depends).  A base is of the words that
// have one: of the group too where that lies along channels.  Of paths it matters that they are.
KVL__FN void kvl__table_side_text(const kvl__codec* c, int32_t depends, char* text, size_t size)
{
    const int based = (depends & KVL__DEPENDS_BASE) &&
                      kvl__word_of(c, KVL__STAGE_META)->num_tables > 0;
    if (depends == KVL__DEPENDS_ALL) {
        kvl__side_text(c, text, size);
        return;
    }
    *text = 0;
    if ((depends & KVL__DEPENDS_POSITION) && kvl__shifts_by_position(c))
        depends |= 1 << KVL__STAGE_SHIFT;
    if (kvl__is_unrotated(c)) depends |= 1 << KVL__STAGE_PLACE;
    if ((depends & KVL__DEPENDS_PATH) && kvl__has_path(c))
        kvl__append_text(text, size, ",path");
    if (depends & KVL__DEPENDS_BITS) kvl__append_text(text, size, ",b%d", c->bits);
    if (based && c->words[KVL__STAGE_AXIS] == KVL__AXIS_PER_TOKEN)
        kvl__append_text(text, size, ",g%d", c->group_size);
    if (based) depends |= 1 << KVL__STAGE_AXIS | 1 << KVL__STAGE_META;
    for (int stage = 0; stage < KVL__NUM_STAGES; ++stage) {
        if (!(depends >> stage & 1) || (c->words[stage] == 0 && c->numbers[stage] == 0)) continue;
        kvl__append_text(text, size, ",%s", kvl__word_of(c, stage)->name);
        if (c->numbers[stage]) kvl__append_text(text, size, "%d", c->numbers[stage]);
    }
    memmove(text, text + (*text == ','), strlen(text) + 1 - (*text == ','));
}

// One size of a shape.
KVL__FN int64_t kvl__table_size(const kvl__codec* c, int stage, int32_t size)
{
    if (size == KVL__SIZE_DIM) return c->head_dim;
    if (size == KVL__SIZE_NUMBER) return c->numbers[stage];
    if (size == KVL__SIZE_CHOICES) return c->head_dim / c->numbers[stage] + 1;
    return size;
}

// Whether the side, as it is composed, needs the table.
KVL__FN int kvl__table_is_needed(const kvl__codec* c, const kvl__table_desc* table)
{
    return table->only == 0 || table->only == c->words[KVL__STAGE_CHOOSE];
}

// Whether kernels read it: those of a transform that the weights have they do not, nor what the
// runtime takes from rows before.
KVL__FN int kvl__table_is_read(const kvl__codec* c, int stage, const kvl__table_desc* table)
{
    return kvl__table_is_needed(c, table) && !table->of_layer &&
           !(stage == KVL__STAGE_TRANSFORM && kvl__is_folded(c));
}

KVL__FN int64_t kvl__table_count(const kvl__codec* c, int stage, const kvl__table_desc* table)
{
    int64_t count = 1;
    for (int i = 0; i < table->rank; ++i) count *= kvl__table_size(c, stage, table->shape[i]);
    return count;
}

// Where a table begins in the record; with name NULL, the floats of the whole record.
KVL__FN int64_t kvl__table_at(const kvl__codec* c, const char* name)
{
    int64_t at = 0;
    for (int stage = 0; stage < KVL__NUM_STAGES; ++stage) {
        const kvl__word* word = kvl__word_of(c, stage);
        for (int i = 0; i < word->num_tables; ++i) {
            if (!kvl__table_is_read(c, stage, &word->tables[i])) continue;
            if (name && strcmp(word->tables[i].name, name) == 0) return at;
            at += kvl__table_count(c, stage, &word->tables[i]);
            at = (at + KVL__TABLE_UNIT - 1) / KVL__TABLE_UNIT * KVL__TABLE_UNIT;
        }
    }
    return name ? -1 : at;
}

KVL__FN int64_t kvl__record_floats(const kvl__codec* c) { return kvl__table_at(c, NULL); }

// A layer's records, keys of all heads first.
KVL__FN uint64_t kvl__records_bytes(const kvl__config* c)
{
    const int64_t floats = kvl__record_floats(&c->side[0]) +
                           (c->num_stored == 2 ? kvl__record_floats(&c->side[1]) : 0);
    return floats ? (uint64_t)(floats * c->num_kv_heads) * sizeof(float) + 63 : 0;
}

// Whether rows are predicted from those of other layers.
KVL__FN int kvl__predicts(const kvl__config* c)
{
    return c->num_stored == 2 && kvl__is_predicted(&c->side[0]);
}

// What a side's rows are predicted from: keys of all heads, for values also values, and 1.
KVL__FN int64_t kvl__num_inputs(const kvl__config* c, int side)
{
    return c->num_kv_heads * (c->side[0].head_dim + (side ? c->side[1].head_dim : 0)) + 1;
}

KVL__FN uint64_t kvl__predictor_bytes(const kvl__config* c)
{
    int64_t floats = 0;
    for (int side = 0; kvl__predicts(c) && side < 2; ++side)
        floats += c->num_kv_heads * kvl__num_inputs(c, side) * c->side[side].head_dim;
    return (uint64_t)floats * sizeof(float);
}

KVL__FN void kvl__table_want(const kvl__config* config, int layer, int side, int stage,
                             const kvl__table_desc* table, kvl__wanted_table* w)
{
    const kvl__codec* c = &config->side[side];
    memset(w, 0, sizeof *w);
    w->layer = layer;
    w->side = side;
    w->num_kv_heads = config->num_kv_heads;
    w->rank = table->rank;
    w->of_layer = table->of_layer;
    for (int i = 0; i < table->rank; ++i)
        w->shape[i] = table->shape[i] == KVL__SIZE_INPUTS
            ? kvl__num_inputs(config, side) : kvl__table_size(c, stage, table->shape[i]);
    kvl__append_text(w->name, sizeof w->name, "%s", table->name);
    if (table->depends || kvl__is_unrotated(c)) {      // keys before RoPE have tables of their own
        char text[KVL__SIDE_BYTES];
        kvl__table_side_text(c, table->depends, text, sizeof text);
        if (*text) kvl__append_text(w->name, sizeof w->name, "@%s", text);
    }
}

// The table's part of each head's record, [num_kv_heads] of `stride` floats.
KVL__FN kvl_status kvl__table_copy(kvl_context* ctx, const kvl__wanted_table* w, int transposed,
                                   const float* from, int64_t stride, float* to)
{
    const float most = ldexpf(1.0f, 100);
    const int64_t columns = w->rank > 1 ? w->shape[1] : 1, rows = w->shape[0];
    const int64_t count = rows * columns;
    for (int head = 0; head < w->num_kv_heads; ++head)
        for (int64_t i = 0; i < count; ++i) {
            const float x = from[head * count + i];
            KVL__REQUIRE(ctx, fabsf(x) <= most, KVL_BAD_ARGUMENT,
                         "calibration: layer.%d.%c.%s = %g in head %d, number %lld: must be finite "
                         "and at most 2^100", w->layer, w->side ? 'v' : 'k', w->name, (double)x,
                         head, (long long)i);
            to[head * stride + (transposed ? i % columns * rows + i / columns : i)] = x;
        }
    return KVL_OK;
}

KVL__FN kvl_status kvl__table_missing(kvl_context* ctx, const kvl__config* config,
                                      const kvl__wanted_table* w, int stage,
                                      const kvl__table_source* source)
{
    const kvl__codec* c = &config->side[w->side];
    char spec[KVL__SPEC_BYTES];
    kvl__canonical_spec(config, spec, sizeof spec);
    return kvl__fail(ctx, KVL_BAD_ARGUMENT, "layer %d: %c.%s = %s: %s layer.%d.%c.%s; make it with "
                     "kvloom-calibrate -m MODEL -f TEXT -o FILE %s--for '%s'", w->layer,
                     w->side ? 'v' : 'k', kvl__stages[stage].name, kvl__word_of(c, stage)->name,
                     source ? "the calibration has no" : "needs a calibration with", w->layer,
                     w->side ? 'v' : 'k', w->name, source ? "--resume " : "", spec);
}

// BITS THAT A CALIBRATION CHOOSES
//
// bits=auto reads a table `bits` [1] of each side: whole numbers, one for all heads of a layer.
// They were chosen by `bit_losses` [2]: what the side loses alone.  That depends on its own
// composition and on the windows, and the choice on the budget and both compositions; all of it is
// part of the tables' names.

// name and what is common: the windows.
KVL__FN void kvl__choice_want(const kvl__config* config, int layer, int side, const char* name,
                              kvl__wanted_table* w)
{
    memset(w, 0, sizeof *w);
    w->layer = layer;
    w->side = side;
    w->num_kv_heads = config->num_kv_heads;
    w->rank = 1;
    w->shape[0] = 1;
    kvl__append_text(w->name, sizeof w->name, "%s@sink%d,recent%d", name, config->sink_len,
                     config->recent_len);
}

// The side without its bits.
KVL__FN void kvl__choice_add_side(const kvl__codec* codec, kvl__wanted_table* w)
{
    char text[KVL__SIDE_BYTES];
    kvl__codec c = *codec;
    c.bits = 0;
    kvl__side_text(&c, text, sizeof text);
    kvl__append_text(w->name, sizeof w->name, "%s", text + 2);
}

KVL__FN void kvl__bit_losses_want(const kvl__config* config, int layer, int side,
                                  kvl__wanted_table* w)
{
    kvl__choice_want(config, layer, side, "bit_losses", w);
    w->shape[0] = 2;
    kvl__choice_add_side(&config->side[side], w);
}

KVL__FN void kvl__bits_want(const kvl__config* config, int layer, int side, kvl__wanted_table* w)
{
    kvl__choice_want(config, layer, side, "bits", w);
    kvl__append_text(w->name, sizeof w->name, ",auto");
    kvl__append_thousands(w->name, sizeof w->name, config->auto_bits);
    for (int i = 0; i < config->num_stored; ++i) {
        if (i) kvl__append_text(w->name, sizeof w->name, ";");
        kvl__choice_add_side(&config->side[i], w);
    }
}

KVL__FN kvl_status kvl__bits_choose(kvl_context* ctx, const kvl__table_source* source, int layer,
                                    kvl__config* config)
{
    int32_t bits[2] = { 0, 0 };
    for (int side = 0; side < config->num_stored; ++side) {
        kvl__wanted_table w;
        const float* found = NULL;
        kvl__bits_want(config, layer, side, &w);
        if (source) KVL__TRY(source->find(ctx, source, &w, &found));
        if (!found) {
            char spec[KVL__SPEC_BYTES];
            kvl__canonical_spec(config, spec, sizeof spec);
            return kvl__fail(ctx, KVL_BAD_ARGUMENT, "layer %d: bits = auto: %s layer.%d.%c.%s; "
                             "make it with kvloom-calibrate -m MODEL -f TEXT -o FILE %s--for '%s'",
                             layer, source ? "the calibration has no" : "needs a calibration with",
                             layer, side ? 'v' : 'k', w.name, source ? "--resume " : "", spec);
        }
        bits[side] = *found >= 1.0f && *found <= 16.0f ? (int32_t)*found : 0;
        for (int head = 0; head < config->num_kv_heads; ++head)
            KVL__REQUIRE(ctx, found[head] == (float)bits[side] &&
                         kvl__has_bits(&config->side[side], bits[side]), KVL_BAD_ARGUMENT,
                         "calibration: layer.%d.%c.%s = %g in head %d: must be bits that the codec "
                         "has, the same in all heads", layer, side ? 'v' : 'k', w.name,
                         (double)found[head], head);
    }
    config->side[0].bits = bits[0];
    config->side[1].bits = config->num_stored == 2 ? bits[1] : bits[0];
    config->auto_bits = 0;
    return KVL_OK;
}

// Sets *config of a layer with heads, with the bits that a calibration chooses; NULL: none.
KVL__FN kvl_status kvl__config_create(kvl_context* ctx, int layer, const kvl_layer_desc* desc,
                                      const char* spec, const kvl_calibration* calibration,
                                      kvl__config* config)
{
    KVL__TRY(kvl__config_parse(ctx, layer, desc, spec, config));
    if (!config->auto_bits) return KVL_OK;
    return kvl__bits_choose(ctx, (const kvl__table_source*)(const void*)calibration,
                            layer < 0 ? 0 : layer, config);
}

// Whether the basis that values come in is calibrated.
KVL__FN int kvl__folds_tables(const kvl__codec* c)
{
    return kvl__is_folded(c) && kvl__word_of(c, KVL__STAGE_TRANSFORM)->num_tables > 0;
}

// Table i of a side's transform, [num_kv_heads, head_dim, head_dim]: F, then Q.
KVL__FN kvl_status kvl__basis_table(kvl_context* ctx, const kvl__table_source* source, int layer,
                                    const kvl__config* config, int side, int i, const float** out)
{
    const kvl__table_desc* table =
        &kvl__word_of(&config->side[side], KVL__STAGE_TRANSFORM)->tables[i];
    kvl__wanted_table wanted;
    *out = NULL;
    kvl__table_want(config, layer, side, KVL__STAGE_TRANSFORM, table, &wanted);
    if (source) KVL__TRY(source->find(ctx, source, &wanted, out));
    if (*out) return KVL_OK;
    return kvl__table_missing(ctx, config, &wanted, KVL__STAGE_TRANSFORM, source);
}

// Queries and rows of a basis meet in scores: F Q^T must be 1, as far as numbers of 24 bits tell.
// Matrices of the user's are checked; those that are derived are inverted in double.
KVL__FN kvl_status kvl__check_pair(kvl_context* ctx, int layer, int side, const kvl__codec* c,
                                   int head, const float* forward, const float* query)
{
    const int n = c->head_dim;
    if (c->words[KVL__STAGE_TRANSFORM] != KVL__TRANSFORM_FILE) return KVL_OK;
    for (int i = 0; i < n; ++i)
        for (int j = 0; j < n; ++j) {
            double sum = 0, size = 0;
            for (int k = 0; k < n; ++k) {
                const double x = (double)forward[i * n + k] * (double)query[j * n + k];
                sum += x;
                size += fabs(x);
            }
            KVL__REQUIRE(ctx, size <= 1e6 && fabs(sum - (i == j)) <= 1e-4 + 1e-6 * size,
                         KVL_BAD_ARGUMENT, "calibration: layer.%d.%c.file_forward and file_query, "
                         "head %d: row %d of one times row %d of the other is %g: must be %d: the "
                         "one is the inverse transpose of the other, and none is singular",
                         layer, side ? 'v' : 'k', head, i, j, sum, i == j);
        }
    return KVL_OK;
}

// An order of channels of `num_heads` heads from `head` on, and whose they are.
typedef struct kvl__order {
    int         layer, side, head, num_heads, dim;
    const char* name;
    const char* whose;                 // "layer"
} kvl__order;

// It names each of them once.
KVL__FN kvl_status kvl__check_order(kvl_context* ctx, const kvl__order* o, int64_t stride,
                                    const float* orders)
{
    const int num = o->num_heads * o->dim;
    unsigned char seen[KVL__MAX_LAYER_CHANNELS / 8] = { 0 };
    for (int i = 0; i < num; ++i) {
        const float x = orders[i / o->dim * stride + i % o->dim];
        const int at = x >= 0.0f && x < (float)num ? (int)x : -1;
        KVL__REQUIRE(ctx, at >= 0 && (float)at == x && !(seen[at / 8] >> at % 8 & 1),
                     KVL_BAD_ARGUMENT, "calibration: layer.%d.%c.%s = %g in head %d, number %d: "
                     "must name each of the %s's %d channels once", o->layer, o->side ? 'v' : 'k',
                     o->name, (double)x, o->head + i / o->dim, i % o->dim, o->whose, num);
        seen[at / 8] = (unsigned char)(seen[at / 8] | 1 << at % 8);
    }
    return KVL_OK;
}

// Orders that rows are read by: of all heads of a layer, or of each head.
KVL__FN kvl_status kvl__check_orders(kvl_context* ctx, const kvl__config* config, int layer,
                                     int side, const float* records)
{
    static const char* const of_heads[] = { "feedback_order", "outlier_order" };
    const kvl__codec* c = &config->side[side];
    const int64_t stride = kvl__record_floats(c);
    kvl__order o = { layer, side, 0, config->num_kv_heads, c->head_dim, "grouped_order", "layer" };
    if (kvl__is_across(c))
        KVL__TRY(kvl__check_order(ctx, &o, stride, records + kvl__table_at(c, o.name)));
    o.whose = "head";
    o.num_heads = 1;
    for (int i = 0; i < 2; ++i) {
        const int64_t at = kvl__table_at(c, of_heads[i]);
        o.name = of_heads[i];
        for (o.head = 0; at >= 0 && o.head < config->num_kv_heads; ++o.head)
            KVL__TRY(kvl__check_order(ctx, &o, stride, records + o.head * stride + at));
    }
    return KVL_OK;
}

enum { KVL__WIDTH_MOST = 6 };              // gen/parts/pairs.lua

// Bits of channels add up to those of a row; sizes can be divided by.
KVL__FN kvl_status kvl__check_widths_of(kvl_context* ctx, const kvl__codec* c, int layer, int head,
                                        const float* record)
{
    const float* bits = record + kvl__table_at(c, "pair_bits");
    const float* sizes = record + kvl__table_at(c, "pair_size");
    int sum = 0;
    for (int i = 0; i < c->head_dim; ++i) {
        KVL__REQUIRE(ctx, bits[i] >= 0.0f && bits[i] <= (float)KVL__WIDTH_MOST &&
                     (float)(int)bits[i] == bits[i], KVL_BAD_ARGUMENT, "calibration: "
                     "layer.%d.k.pair_bits = %g in head %d, number %d: must be a whole number from "
                     "0 to %d", layer, (double)bits[i], head, i, KVL__WIDTH_MOST);
        KVL__REQUIRE(ctx, sizes[i] > 0.0f, KVL_BAD_ARGUMENT, "calibration: layer.%d.k.pair_size = "
                     "%g in head %d, number %d: must be above 0", layer, (double)sizes[i], head, i);
        sum += (int)bits[i];
    }
    KVL__REQUIRE(ctx, sum == c->head_dim * c->bits, KVL_BAD_ARGUMENT, "calibration: "
                 "layer.%d.k.pair_bits of head %d add up to %d: must be %d, %d for each of %d "
                 "channels", layer, head, sum, c->head_dim * c->bits, c->bits, c->head_dim);
    return KVL_OK;
}

// Fills the records of one side of a layer: [num_kv_heads, record_floats], zeroed before.
KVL__FN kvl_status kvl__record_fill(kvl_context* ctx, const kvl__table_source* source, int layer,
                                    const kvl__config* config, int side, float* records)
{
    const kvl__codec* c = &config->side[side];
    const int64_t stride = kvl__record_floats(c);
    for (int stage = 0; stage < KVL__NUM_STAGES; ++stage) {
        const kvl__word* word = kvl__word_of(c, stage);
        for (int i = 0; i < word->num_tables; ++i) {
            const kvl__table_desc* table = &word->tables[i];
            const float* found = NULL;
            kvl__wanted_table wanted;
            if (!kvl__table_is_read(c, stage, table)) continue;
            kvl__table_want(config, layer, side, stage, table, &wanted);
            if (source) KVL__TRY(source->find(ctx, source, &wanted, &found));
            if (!found) return kvl__table_missing(ctx, config, &wanted, stage, source);
            KVL__TRY(kvl__table_copy(ctx, &wanted, table->transposed, found, stride,
                                     records + kvl__table_at(c, table->name)));
        }
    }
    for (int head = 0; kvl__has_widths(c) && head < config->num_kv_heads; ++head)
        KVL__TRY(kvl__check_widths_of(ctx, c, layer, head, records + head * stride));
    KVL__TRY(kvl__check_orders(ctx, config, layer, side, records));
    if (kvl__transform_of(c) != KVL__TRANSFORM_FILE) return KVL_OK;
    const float* forward = records + kvl__table_at(c, "file_forward");
    const float* query = records + kvl__table_at(c, "file_query");
    for (int head = 0; head < config->num_kv_heads; ++head)
        KVL__TRY(kvl__check_pair(ctx, layer, side, c, head, forward + head * stride,
                                 query + head * stride));
    return KVL_OK;
}

#endif
