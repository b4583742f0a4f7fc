// eval_html.c -- writes an evaluation as one HTML page: tables, and plots as inline SVG.
//
// The page loads nothing, and reads without its script, which only sorts tables and unfolds maps
// for paper. Colors are custom properties, so that plots follow the reader's light or dark scheme;
// paper is always light. Line plots are drawn twice, for a wide screen and for a phone, and the
// style shows one: scaling one drawing would make its letters unreadable.
//
// Text from data goes through put_escaped or put_token, and numbers through set_number or
// set_fixed, always: the formats of emit have no other way to print them.

#include "eval_html.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    max_bins = 64,          // points of a line: 14 px each on the wide plot
    num_colors = 7,         // of caches, in the style; after these the dashes change
    num_dashes = 4,
    max_name = 26,          // letters of a cache in a plot; longer ones lose their middle
    max_layer_px = 34,      // of a cell of the heat map
    num_viridis = 9
};

// STYLE AND SCRIPT

static const char* const style[] = {
    ":root{color-scheme:light dark;--bg:#fff;--fg:#1b1f24;--dim:#5a636d;--line:#c9ced4;",
    "--faint:#e9ecef;--card:#f5f6f8;--mark:#ffe49b;--c0:#6b7280;--c1:#0072b2;--c2:#cf5600;",
    "--c3:#008a64;--c4:#b5568a;--c5:#b87900;--c6:#3e9bd6;--c7:#22262b}",
    "@media screen and (prefers-color-scheme:dark){:root{--bg:#14171a;--fg:#e4e7ea;",
    "--dim:#9aa4ae;--line:#434a52;--faint:#262b30;--card:#1d2125;--mark:#6b5410;--c0:#98a1ab;",
    "--c1:#3f97e6;--c2:#f0802f;--c3:#1fbf8f;--c4:#e39ac4;--c5:#f0b429;--c6:#94d3f8;",
    "--c7:#e4e7ea}}",
    "*{box-sizing:border-box}",
    "body{margin:0 auto;max-width:1120px;padding:28px 20px 60px;background:var(--bg);",
    "color:var(--fg);font:15px/1.5 system-ui,-apple-system,'Segoe UI',Roboto,'Liberation Sans',",
    "sans-serif;overflow-wrap:anywhere}",
    "h1{font-size:26px;line-height:1.25;margin:0 0 6px}",
    "h2{font-size:19px;margin:44px 0 6px;padding-top:14px;border-top:1px solid var(--line)}",
    "h3{font-size:15px;margin:0;display:flex;align-items:baseline}p{margin:6px 0;",
    "max-width:78ch}.dim{color:var(--dim)}",
    ".note{color:var(--dim);font-size:13.5px}.warn{border-left:4px solid var(--c2);",
    "padding:4px 12px;background:var(--card)}",
    "code,pre{font-family:ui-monospace,SFMono-Regular,Menlo,Consolas,'Liberation Mono',monospace;",
    "font-size:13px}pre{background:var(--card);padding:10px 12px;margin:8px 0;border-radius:4px;",
    "white-space:pre-wrap}",
    "dl{display:grid;grid-template-columns:max-content minmax(0,1fr);gap:2px 18px;margin:14px 0}",
    "dt{color:var(--dim)}dd{margin:0}",
    ".scroll{overflow-x:auto;margin:12px 0}",
    "table{border-collapse:collapse;font-variant-numeric:tabular-nums}",
    ".data{font-size:13px;width:100%;overflow-wrap:normal}",
    ".data th,.data td{padding:5px 6px;text-align:right;white-space:nowrap;",
    "border-bottom:1px solid var(--faint)}",
    ".data th{color:var(--dim);font-weight:600;vertical-align:bottom}",
    ".data thead tr:last-child th{border-bottom:1px solid var(--line)}",
    ".data .group{text-align:center}.data .name{text-align:left;white-space:normal;",
    "min-width:178px;position:sticky;left:0;background:var(--bg);z-index:1;font-weight:400;",
    "color:var(--fg);overflow-wrap:anywhere}.data thead .name{color:var(--dim);font-weight:600}",
    ".name>div{display:flex;align-items:baseline}.data .se{text-align:left;color:var(--dim);",
    "padding-left:0}.data .why{text-align:left;white-space:normal;color:var(--c2);min-width:300px}",
    ".data tbody tr:hover>*{background:var(--card)}.sorts th[data-c]{cursor:pointer}",
    ".sorts th[aria-sort]{color:var(--fg)}",
    ".key{display:inline-block;flex:none;white-space:nowrap;min-width:20px;",
    "padding:0 4px;margin-right:7px;text-align:center;border-radius:4px;",
    "border:2px solid var(--c);font:700 12px/16px system-ui,sans-serif;",
    "color:var(--c)}.key.front{background:var(--c);color:var(--bg)}",
    ".legend{display:flex;flex-wrap:wrap;gap:4px 18px;list-style:none;padding:0;margin:6px 0;",
    "font-size:13px}",
    "figure{margin:12px 0}svg{display:block;width:100%;height:auto;overflow:visible;",
    "font:13px system-ui,-apple-system,'Segoe UI',Roboto,'Liberation Sans',sans-serif}",
    "svg text{fill:var(--fg)}svg .tick{fill:var(--dim);font-size:12px}svg .axis{fill:var(--dim)}",
    "svg .halo{paint-order:stroke;stroke:var(--bg);stroke-width:4px;stroke-linejoin:round;",
    "font-size:12px}",
    ".grid{stroke:var(--line);stroke-width:1}.minor{stroke:var(--faint);stroke-width:1}",
    ".lane{fill:var(--card)}.frame{fill:none;stroke:var(--line)}",
    ".pareto{fill:none;stroke:var(--dim);stroke-width:1.5;stroke-dasharray:5 4}",
    ".leader{stroke:var(--dim);stroke-width:1}",
    ".err{stroke:var(--c);stroke-width:1.5}.dot{fill:var(--bg);stroke:var(--c);stroke-width:2}",
    ".dot.front{fill:var(--c)}.dot:hover{stroke:var(--fg)}",
    ".curve{fill:none;stroke:var(--c);stroke-width:1.8;stroke-linejoin:round}",
    ".hit{fill:var(--c);opacity:0}.hit:hover{opacity:1}",
    ".lines:hover .line{opacity:.22}.lines .line:hover{opacity:1}",
    ".lines .line:hover .curve{stroke-width:2.6}",
    ".d1 .curve{stroke-dasharray:7 3}.d2 .curve{stroke-dasharray:2 3}",
    ".d3 .curve{stroke-dasharray:9 3 2 3}",
    ".c0{--c:var(--c0)}.c1{--c:var(--c1)}.c2{--c:var(--c2)}.c3{--c:var(--c3)}",
    ".c4{--c:var(--c4)}.c5{--c:var(--c5)}.c6{--c:var(--c6)}.c7{--c:var(--c7)}",
    ".endnum{fill:var(--c)!important;font-weight:700;font-size:12px}",
    ".cell:hover{stroke:var(--fg);stroke-width:2}",
    ".narrow{display:none}.map{max-width:560px}.needle{max-width:420px}",
    ".maps{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,340px),1fr));",
    "gap:14px 28px;align-items:start}",
    "details{border-bottom:1px solid var(--faint)}summary{cursor:pointer;padding:7px 0}",
    "summary .note{margin-left:10px}details[open]{padding-bottom:14px}",
    ".cards{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,430px),1fr));",
    "gap:14px}",
    ".card{background:var(--card);border-radius:6px;padding:10px 14px;break-inside:avoid;",
    "min-width:0}",
    ".card p{margin:4px 0 8px}.context{white-space:pre-wrap;font-size:14px}",
    "mark{background:var(--mark);color:inherit;padding:0 2px;border-radius:2px}",
    ".byte{color:var(--dim);font-size:.88em}",
    ".two{display:grid;grid-template-columns:1fr 1fr;gap:14px;font-size:13px}",
    ".two>div{min-width:0}.two ol{list-style:none;padding:0;margin:0}",
    ".two li{display:flex;justify-content:space-between;gap:8px;padding:1px 5px;margin:2px 0;",
    "background:linear-gradient(var(--line),var(--line)) 0 0/var(--p) 100% no-repeat}",
    ".two li span:last-child{font-variant-numeric:tabular-nums}",
    ".two .next{font-weight:700}.token{white-space:pre-wrap;min-width:0}",
    "td.bar{background:linear-gradient(var(--line),var(--line)) 0 50%/var(--p) 70% no-repeat}",
    "@media screen and (max-width:800px){.wide{display:none}.narrow{display:block}",
    "svg.narrow{max-width:560px}body{padding:18px 14px 40px}",
    "h1{font-size:22px}dl{grid-template-columns:minmax(0,1fr);gap:0}dd{margin-bottom:7px}",
    ".data .name{min-width:150px;max-width:168px}}",
    "@media print{body{max-width:none;padding:0;font-size:11px}.data{font-size:8px}",
    ".data th,.data td{padding:3px 3px}.data .name{min-width:90px}.scroll{overflow:visible}",
    "*{print-color-adjust:exact;-webkit-print-color-adjust:exact}",
    "figure,.card,tr{break-inside:avoid}h2,h2+p,summary{break-after:avoid}",
    ".cards{grid-template-columns:1fr 1fr}}",
    NULL
};

const char* const* eval_html_style(void) { return style; }

static const char* const script[] = {
    "document.querySelectorAll('table.sorts').forEach(function(t){",
    "var b=t.tBodies[0],rows=[].slice.call(b.rows),heads=t.querySelectorAll('th[data-c]');",
    "heads.forEach(function(h){h.tabIndex=0;function go(){",
    "var c=+h.dataset.c,up=h.getAttribute('aria-sort')!=='ascending';",
    "heads.forEach(function(o){o.removeAttribute('aria-sort')});",
    "h.setAttribute('aria-sort',up?'ascending':'descending');",
    "function v(r){var d=r.cells[c]&&r.cells[c].dataset.v;return d?+d:NaN}",
    "rows.slice().sort(function(p,q){var x=v(p),y=v(q);",
    "if(x!==x||y!==y)return (x!==x)-(y!==y);return up?x-y:y-x})",
    ".forEach(function(r){b.appendChild(r)})}",
    "h.addEventListener('click',go);h.addEventListener('keydown',function(e){",
    "if(e.key==='Enter')go()})})});",
    "addEventListener('beforeprint',function(){document.querySelectorAll('.maps')",
    ".forEach(function(m){var d=m.closest('details');if(d)d.open=true})});",
    NULL
};

// NUMBERS AND TEXT

// Makes what snprintf wrote the same in every locale: a decimal point of any bytes becomes '.'.
static void use_point(char* text)
{
    char* to = text;
    bool inside = false;
    for (const char* from = text; *from != '\0'; from++) {
        const bool plain = strchr("+-0123456789e", *from) != NULL;
        if (plain) *to++ = *from;
        else if (!inside) *to++ = '.';
        inside = !plain;
    }
    *to = '\0';
}

// What stands where there is no finite number. Entities, so that no attribute says "nan".
static const char* odd_number(double value)
{
    if (isnan(value)) return "&#8211;";
    return value > 0 ? "&#8734;" : "&#8722;&#8734;";
}

typedef struct number { char text[48]; } number;

static void set_fixed(number* out, double value, int decimals)
{
    if (!isfinite(value)) {
        snprintf(out->text, sizeof out->text, "%s", odd_number(value));
    } else if (fabs(value) >= 1e15) {
        snprintf(out->text, sizeof out->text, "%.2e", value);
        use_point(out->text);
    } else {
        snprintf(out->text, sizeof out->text, "%.*f", decimals, value);
        use_point(out->text);
        // No "-0.0".
        if (out->text[0] == '-' && strspn(out->text, "-0.") == strlen(out->text)) {
            memmove(out->text, out->text + 1, strlen(out->text));
        }
    }
}

// Three digits that count, or `digits`: 0.00123, 12.3, 4560; 1.2e-7 outside a readable range.
static void set_number(number* out, double value, int digits)
{
    const double size = fabs(value);
    if (!isfinite(value) || value == 0) {
        set_fixed(out, value, 0);
        return;
    }
    if (size < 1e-4 || size >= 1e9) {
        snprintf(out->text, sizeof out->text, "%.*e", digits - 1, value);
        use_point(out->text);
        // e-07 reads as e-7.
        char* exponent = strchr(out->text, 'e') + 1;
        char* digit = exponent + (*exponent == '-' || *exponent == '+');
        const size_t zeros = strspn(digit, "0");
        char* to = *exponent == '+' ? exponent : digit;
        memmove(to, digit + zeros, strlen(digit + zeros) + 1);
        return;
    }
    const int decimals = digits - 1 - (int)floor(log10(size));
    set_fixed(out, value, decimals > 0 ? decimals : 0);
}

// A coordinate: one decimal, or none.
static void put_coordinate(FILE* out, double value)
{
    number text;
    set_fixed(&text, isfinite(value) ? value : 0, 1);
    const size_t length = strlen(text.text);
    if (length > 2 && strcmp(text.text + length - 2, ".0") == 0) text.text[length - 2] = '\0';
    fputs(text.text, out);
}

static const char* or_empty(const char* text) { return text != NULL ? text : ""; }

// The character at s and its bytes; UINT32_MAX and 1 for a byte that is not UTF-8. s is terminated.
static size_t decode_utf8(const unsigned char* s, uint32_t* code)
{
    static const uint32_t least[] = { 0, 0, 0x80, 0x800, 0x10000 };
    const size_t length = s[0] < 0x80 ? 1 : s[0] < 0xc0 ? 0 : s[0] < 0xe0 ? 2 : s[0] < 0xf0 ? 3 : 4;
    *code = UINT32_MAX;
    if (length == 0 || s[0] >= 0xf8) return 1;
    uint32_t value = length == 1 ? s[0] : s[0] & (0xffu >> (length + 1));
    for (size_t i = 1; i < length; i++) {
        if ((s[i] & 0xc0) != 0x80) return 1;
        value = value << 6 | (s[i] & 0x3fu);
    }
    if (value < least[length] || value > 0x10ffff || (value >= 0xd800 && value < 0xe000)) return 1;
    *code = value;
    return length;
}

// Controls, marks that reorder the text around them, and what HTML does not allow.
static bool unprintable(uint32_t code)
{
    return code < 0x20 || (code >= 0x7f && code < 0xa0) || code == 0x200e || code == 0x200f ||
           (code >= 0x2028 && code <= 0x202e) || (code >= 0x2066 && code <= 0x2069) ||
           code == 0xfeff || (code & 0xfffe) == 0xfffe || (code >= 0xfdd0 && code <= 0xfdef);
}

static void put_character(FILE* out, const unsigned char* s, size_t length)
{
    switch (*s) {
    case '&': fputs("&amp;", out); break;
    case '<': fputs("&lt;", out); break;
    case '>': fputs("&gt;", out); break;
    case '"': fputs("&quot;", out); break;
    case '\'': fputs("&#39;", out); break;
    default: fwrite(s, 1, length, out);
    }
}

// Text of any bytes as text of the page, also within an attribute. limit: at most so many
// characters, where longer text loses its middle; 0: all of it.
static void put_escaped(FILE* out, const char* text, int limit)
{
    const unsigned char* s = (const unsigned char*)or_empty(text);
    uint32_t code;
    int count = 0;
    for (size_t i = 0; s[i] != '\0'; i += decode_utf8(s + i, &code)) count++;
    const bool cut = limit > 0 && count > limit;
    const int head = cut ? limit * 2 / 3 : count;
    const int tail = cut ? count - (limit - head - 1) : count;
    for (int at = 0; *s != '\0'; at++) {
        const size_t length = decode_utf8(s, &code);
        if (at == head && cut) fputs("&#8230;", out);
        if (at < head || at >= tail) {
            if (code == '\n') fputc('\n', out);
            else if (code == UINT32_MAX || unprintable(code)) fputs("&#65533;", out);
            else put_character(out, s, length);
        }
        s += length;
    }
}

// Text of tokens: bytes that show nothing are named, since they are what a reader looks for.
// spaces: also a space has a mark, for a token that stands alone.
static void put_token(FILE* out, const char* text, bool spaces)
{
    const unsigned char* s = (const unsigned char*)text;
    while (*s != '\0') {
        uint32_t code;
        const size_t length = decode_utf8(s, &code);
        if (code == '\n') fputs("<span class=\"byte\">&#8629;</span>", out);
        else if (code == '\t') fputs("<span class=\"byte\">&#8677;</span>", out);
        else if (code == ' ' && spaces) fputs("<span class=\"byte\">&#9251;</span>", out);
        else if (code == UINT32_MAX) fprintf(out, "<span class=\"byte\">\\x%02x</span>", *s);
        else if (unprintable(code)) {
            fprintf(out, "<span class=\"byte\">\\u%04x</span>", (unsigned)code);
        } else put_character(out, s, length);
        s += length;
    }
}

// printf of the page. %d int, %l int64_t, %s markup, %e text that is escaped, %x a coordinate,
// %n a number with three digits that count, %p a share in percent.
static void emit(FILE* out, const char* format, ...)
{
    va_list args;
    va_start(args, format);
    for (const char* f = format; *f != '\0'; f++) {
        if (*f != '%') {
            fputc(*f, out);
            continue;
        }
        number text = { "" };
        switch (*++f) {
        case 'd': fprintf(out, "%d", va_arg(args, int)); break;
        case 'l': fprintf(out, "%lld", (long long)va_arg(args, int64_t)); break;
        case 's': fputs(va_arg(args, const char*), out); break;
        case 'e': put_escaped(out, va_arg(args, const char*), 0); break;
        case 'x': put_coordinate(out, va_arg(args, double)); break;
        case 'n': set_number(&text, va_arg(args, double), 3); break;
        case 'p': set_fixed(&text, va_arg(args, double) * 100, 1); break;
        default: fputc(*f, out);
        }
        fputs(text.text, out);
    }
    va_end(args);
}

// CACHES
//
// A cache is known by its key: 0 is the base, k the k-th that was asked for. The key decides
// color, dash and the number that plots and tables share.

typedef struct point {
    int key;
    const eval_cache* cache;
    double bits, kl, se;     // kl and se times 1000; se is 0 where there is none
    bool front;              // no other cache has fewer bits and less KL
    double x, y;             // in the plot
    double bar_top, bar_end; // of the standard error; both y where there is no bar
} point;

static const eval_cache* cache_of(const eval_results* results, int key)
{
    return key == 0 ? &results->base : &results->caches[key - 1];
}

static int color_of(int key) { return key == 0 ? 0 : 1 + (key - 1) % num_colors; }
static int dash_of(int key) { return key == 0 ? 0 : (key - 1) / num_colors % num_dashes; }

static void put_key(FILE* out, int key, bool front)
{
    emit(out, "<span class=\"key c%d%s\">%d</span>", color_of(key), front ? " front" : "", key);
}

static void put_legend(FILE* out, const point* points, int count)
{
    fputs("<ul class=\"legend\">\n", out);
    for (int i = 0; i < count; i++) {
        fputs("<li>", out);
        put_key(out, points[i].key, points[i].front);
        emit(out, "%e</li>\n", points[i].cache->cache);
    }
    fputs("</ul>\n", out);
}

// A name in a table's first column, beside its number. A spec may break behind its marks.
static void put_row_name(FILE* out, const eval_results* results, int key, bool front)
{
    fputs("<tr><th class=\"name\"><div>", out);
    put_key(out, key, front);
    fputs("<span>", out);
    const eval_cache* cache = cache_of(results, key);
    const char* name = or_empty(cache->cache);
    for (size_t length = strcspn(name, ",:"); name[length] != '\0'; length = strcspn(name, ",:")) {
        char part[64];
        if (length + 1 >= sizeof part) break;
        snprintf(part, sizeof part, "%.*s", (int)length + 1, name);
        emit(out, "%e<wbr>", part);
        name += length + 1;
    }
    emit(out, "%e", name);
    if (key == 0) fputs(" <span class=\"dim\">(base)</span>", out);
    else if (cache->error[0] == '\0' && cache->num_done < results->num_windows) {
        emit(out, " <span class=\"dim\">(%d of %d windows)</span>", cache->num_done,
             results->num_windows);
    }
    fputs("</span></div></th>", out);
}

// The caches that have bits and a KL, the base first. points holds num_caches + 1.
static int collect_points(const eval_results* results, point* points)
{
    int count = 0;
    for (int key = 0; key <= results->num_caches; key++) {
        const eval_cache* cache = cache_of(results, key);
        const double kl = key == 0 ? 0 : cache->kl * 1000;
        const double se = key == 0 ? 0 : cache->kl_se * 1000;
        if (cache->error[0] != '\0' || !isfinite(kl)) continue;
        if (!isfinite(cache->bits_total) || cache->bits_total <= 0) continue;
        points[count++] = (point){ .key = key, .cache = cache, .bits = cache->bits_total,
                                   .kl = kl, .se = isfinite(se) ? se : 0 };
    }
    for (int i = 0; i < count; i++) {
        points[i].front = true;
        for (int j = 0; j < count; j++) {
            const point *a = &points[i], *b = &points[j];
            const bool better = b->bits <= a->bits && b->kl <= a->kl &&
                                (b->bits < a->bits || b->kl < a->kl);
            if (better) points[i].front = false;
        }
    }
    return count;
}

static bool on_front(const point* points, int count, int key)
{
    for (int i = 0; i < count; i++) {
        if (points[i].key == key) return points[i].front;
    }
    return false;
}

// AXES

typedef struct frame {
    double width, height, left, right, top, bottom;  // of the drawing; the plot within it
    bool wide;
} frame;

static const frame wide_frame = { 1080, 440, 62, 1050, 30, 388, true };
static const frame narrow_frame = { 380, 340, 50, 362, 28, 292, false };

typedef struct axis {
    double lo, hi;           // values at `from` and `to`
    double from, to;         // coordinates
    bool log;
    bool lane;               // values below lo, with 0, have a place of their own
    bool lane_is_zero;       // and all of these are 0 or less
    double lane_at;
} axis;

static double axis_at(const axis* a, double value)
{
    if (a->log && !(value >= a->lo * (1 - 1e-9))) return a->lane ? a->lane_at : a->from;
    const double t = a->log ? log(value / a->lo) / log(a->hi / a->lo)
                            : (value - a->lo) / (a->hi - a->lo);
    return a->from + (a->to - a->from) * fmin(fmax(t, 0), 1);
}

// The next of 1, 2, 5 times a power of ten, at or below value, or at or above it.
static double round_125(double value, bool up)
{
    const double power = pow(10, floor(log10(value) + 1e-9)), mantissa = value / power;
    if (up) {
        return power * (mantissa <= 1.0001 ? 1 : mantissa <= 2.0001 ? 2 : mantissa <= 5.0001 ? 5
                                                                                            : 10);
    }
    return power * (mantissa >= 4.9999 ? 5 : mantissa >= 1.9999 ? 2 : 1);
}

// The log axis of a plot's left side over values; false if none is above 0. Seven decades at
// most: what is below is rounding noise, and goes where 0 goes.
static bool make_log_axis(axis* y, const frame* f, const double* values, int count)
{
    double lo = INFINITY, hi = 0;
    for (int i = 0; i < count; i++) {
        if (isfinite(values[i])) hi = fmax(hi, values[i]);
    }
    if (hi <= 0) return false;
    *y = (axis){ .log = true, .hi = hi, .to = f->top, .lane_is_zero = true };
    for (int i = 0; i < count; i++) {
        if (values[i] >= hi * 1e-7) lo = fmin(lo, values[i]);
        else if (isfinite(values[i])) {
            y->lane = true;
            if (values[i] > 0) y->lane_is_zero = false;
        }
    }
    y->lo = round_125(lo, false);
    // A mark on the frame looks cut off.
    y->hi = round_125(hi * 1.2, true);
    if (y->hi < y->lo * 9.99) {
        y->lo = round_125(y->lo / 2, false);
        y->hi = round_125(y->hi * 2, true);
    }
    y->from = f->bottom - (y->lane ? 34 : 0);
    y->lane_at = f->bottom - 14;
    return true;
}

static void put_line(FILE* out, const char* class_name, double x0, double y0, double x1, double y1)
{
    emit(out, "<line class=\"%s\" x1=\"%x\" y1=\"%x\" x2=\"%x\" y2=\"%x\"/>\n", class_name, x0,
         y0, x1, y1);
}

// A short form of a tick's value, which is round: 0.001, 1, 200, 1e-5.
static void put_tick(FILE* out, double value)
{
    number text;
    set_number(&text, value, 1);
    fputs(text.text, out);
}

static void draw_log_axis(FILE* out, const axis* y, const frame* f, const char* label)
{
    const double decades = log10(y->hi / y->lo);
    const int first = (int)floor(log10(y->lo) + 1e-9), last = (int)ceil(log10(y->hi) - 1e-9);
    for (int e = first; e <= last; e++) {
        for (int m = 1; m <= 9; m++) {
            const double value = m * pow(10, e), at = axis_at(y, value);
            if (value < y->lo * 0.999 || value > y->hi * 1.001) continue;
            const bool named = m == 1 || (decades <= 3 && (m == 2 || m == 5));
            if (named || decades <= 4) {
                put_line(out, m == 1 ? "grid" : "minor", f->left, at, f->right, at);
            }
            if (!named) continue;
            emit(out, "<text class=\"tick\" text-anchor=\"end\" x=\"%x\" y=\"%x\">", f->left - 7,
                 at + 4);
            put_tick(out, value);
            fputs("</text>\n", out);
        }
    }
    if (y->lane) {
        emit(out, "<rect class=\"lane\" x=\"%x\" y=\"%x\" width=\"%x\" height=\"%x\"/>\n", f->left,
             y->lane_at - 13, f->right - f->left, 27.0);
        emit(out, "<text class=\"tick\" text-anchor=\"end\" x=\"%x\" y=\"%x\">%s", f->left - 7,
             y->lane_at + 4, y->lane_is_zero ? "" : "&lt; ");
        put_tick(out, y->lane_is_zero ? 0 : y->lo);
        fputs("</text>\n", out);
    }
    emit(out, "<text class=\"axis\" x=\"0\" y=\"14\">%e</text>\n", label);
}

static void draw_x_label(FILE* out, const frame* f, const char* label)
{
    emit(out, "<text class=\"axis\" text-anchor=\"middle\" x=\"%x\" y=\"%x\">%e</text>\n",
         (f->left + f->right) / 2, f->bottom + 40, label);
}

static void draw_x_tick(FILE* out, const axis* x, const frame* f, double value)
{
    const double at = axis_at(x, value);
    number text;
    put_line(out, "minor", at, f->top, at, f->bottom);
    set_fixed(&text, value, value == floor(value) ? 0 : 1);
    emit(out, "<text class=\"tick\" text-anchor=\"middle\" x=\"%x\" y=\"%x\">%s</text>\n", at,
         f->bottom + 18, text.text);
}

static void draw_linear_axis(FILE* out, const axis* x, const frame* f)
{
    const double room = (f->right - f->left) / 72;
    const double step = fmax(1, round_125((x->hi - x->lo) / room, true));
    for (double v = ceil(x->lo / step) * step; v <= x->hi * (1 + 1e-9); v += step) {
        draw_x_tick(out, x, f, v);
    }
}

// Bits on a log axis have their names by rank: the powers of two first, then what lies halfway.
static void draw_bits_axis(FILE* out, const axis* x, const frame* f)
{
    static const double ranked[] = {
        1, 2, 4, 8, 16, 32, 64, 3, 6, 12, 24, 48, 5, 7, 10, 14, 20, 28, 40, 56, 9, 11, 13,
        15, 1.5, 2.5, 3.5, 4.5, 5.5, 6.5, 7.5, 8.5
    };
    double used[sizeof ranked / sizeof ranked[0]];
    int count = 0;
    for (size_t i = 0; i < sizeof ranked / sizeof ranked[0]; i++) {
        const double at = axis_at(x, ranked[i]);
        bool fits = ranked[i] >= x->lo * 0.999 && ranked[i] <= x->hi * 1.001;
        for (int j = 0; j < count && fits; j++) fits = fabs(used[j] - at) >= 32;
        if (!fits) continue;
        used[count++] = at;
        draw_x_tick(out, x, f, ranked[i]);
    }
}

static void begin_svg(FILE* out, const char* class_name, double width, double height,
                      const char* label)
{
    emit(out, "<svg class=\"%s\" viewBox=\"0 0 %x %x\" role=\"img\" aria-label=\"%e\">\n",
         class_name, width, height, label);
}

static void draw_frame(FILE* out, const frame* f)
{
    emit(out, "<rect class=\"frame\" x=\"%x\" y=\"%x\" width=\"%x\" height=\"%x\"/>\n", f->left,
         f->top, f->right - f->left, f->bottom - f->top);
}

// LABELS
//
// Greedy: each point tries places around it, near ones first, and takes the one that covers least.

typedef struct box { double x0, y0, x1, y1; } box;

typedef struct label {
    box at;
    int anchor;              // -1: text starts at x0, 0: centered, 1: ends at x1
    bool named;              // false: the number alone
    double distance;         // from the point
    double covered;          // area of other things, square pixels
} label;

static double overlap(const box* a, const box* b)
{
    const double w = fmin(a->x1, b->x1) - fmax(a->x0, b->x0);
    const double h = fmin(a->y1, b->y1) - fmax(a->y0, b->y0);
    return w > 0 && h > 0 ? w * h : 0;
}

// A box of w by h pixels whose nearest side is `distance` from a point, in one of 8 directions.
static label label_at(const point* p, int direction, double distance, double w, double h)
{
    static const int right[] = { 1, -1, 1, -1, 1, -1, 0, 0 };
    static const int down[] = { 0, 0, -1, -1, 1, 1, -1, 1 };
    const int dx = right[direction], dy = down[direction];
    const double across = dy == 0 ? distance : distance * 0.7;
    const double along = dx == 0 ? distance : distance * 0.7;
    label made = { .anchor = -dx, .distance = distance };
    made.at.x0 = dx > 0 ? p->x + across : dx < 0 ? p->x - across - w : p->x - w / 2;
    made.at.y0 = dy > 0 ? p->y + along : dy < 0 ? p->y - along - h : p->y - h / 2;
    made.at.x1 = made.at.x0 + w;
    made.at.y1 = made.at.y0 + h;
    return made;
}

// Where a label's leader ends: the point of the box that is nearest.
static double nearest(double value, double lo, double hi) { return fmin(fmax(value, lo), hi); }

// A line from p to its label through another label makes both unreadable. In square pixels, as if
// a line were 6 px wide.
static double leader_over(const point* p, const label* l, const box* other)
{
    const double to_x = nearest(p->x, l->at.x0, l->at.x1);
    const double to_y = nearest(p->y, l->at.y0, l->at.y1);
    const double length = hypot(to_x - p->x, to_y - p->y);
    int hits = 0;
    for (int i = 1; i < 16; i++) {
        const double x = p->x + (to_x - p->x) * i / 16, y = p->y + (to_y - p->y) * i / 16;
        hits += x > other->x0 && x < other->x1 && y > other->y0 && y < other->y1;
    }
    return hits * length / 16 * 6;
}

// which: the label's point; those before it have their labels.
static double covered_by(const label* l, const point* points, int count, const label* labels,
                         int which)
{
    double area = 0;
    const point* step = NULL;
    for (int i = 0; i < count; i++) {
        const point* p = &points[i];
        // The front's steps, which run from one of its points to the next, cover little.
        if (p->front && step != NULL) {
            area += overlap(&l->at, &(box){ step->x, step->y - 1, p->x, step->y + 1 });
            area += overlap(&l->at, &(box){ p->x - 1, step->y, p->x + 1, p->y });
        }
        if (p->front) step = p;
        area += overlap(&l->at, &(box){ p->x - 7, p->y - 7, p->x + 7, p->y + 7 });
        area += overlap(&l->at, &(box){ p->x - 2, p->bar_top, p->x + 2, p->bar_end });
    }
    for (int i = 0; i < which; i++) {
        const box* b = &labels[i].at;
        area += overlap(&l->at, &(box){ b->x0 - 3, b->y0, b->x1 + 3, b->y1 });
        area += leader_over(&points[which], l, b);
        area += leader_over(&points[i], &labels[i], &l->at);
    }
    return area;
}

static label best_label(const point* points, int count, int which, const label* labels,
                        const frame* f, double w)
{
    label best = { .covered = INFINITY };
    double best_cost = INFINITY;
    for (int ring = 0; ring < 9; ring++) {
        for (int direction = 0; direction < 8; direction++) {
            label l = label_at(&points[which], direction, 10 + 11 * ring, w, 15);
            if (l.at.x0 < f->left + 2 || l.at.x1 > f->right - 2) continue;
            if (l.at.y0 < f->top + 2 || l.at.y1 > f->bottom - 2) continue;
            l.covered = covered_by(&l, points, count, labels, which);
            const double cost = l.covered * 3 + l.distance + direction * 0.5;
            if (cost < best_cost) {
                best_cost = cost;
                best = l;
            }
        }
    }
    return best;
}

static int count_letters(const char* text)
{
    const unsigned char* s = (const unsigned char*)or_empty(text);
    uint32_t code;
    int count = 0;
    for (; *s != '\0'; s += decode_utf8(s, &code)) count++;
    return count;
}

static void place_labels(const point* points, int count, const frame* f, label* labels)
{
    for (int i = 0; i < count; i++) {
        const int letters = count_letters(points[i].cache->cache);
        const bool name = f->wide || points[i].key == 0;
        const double number_width = points[i].key < 10 ? 9 : 17;
        labels[i].covered = INFINITY;
        if (name) {
            const double w = 7.2 * (letters < max_name ? letters : max_name);
            labels[i] = best_label(points, count, i, labels, f, w);
            labels[i].named = true;
        }
        if (labels[i].covered < 8) continue;
        const label small = best_label(points, count, i, labels, f, number_width);
        if (small.covered < labels[i].covered) labels[i] = small;
    }
}

static void draw_label(FILE* out, const point* p, const label* l)
{
    static const char* const anchors[] = { "start", "middle", "end" };
    if (!isfinite(l->covered)) return;
    const double x = l->anchor < 0 ? l->at.x0 : l->anchor > 0 ? l->at.x1
                                                              : (l->at.x0 + l->at.x1) / 2;
    if (l->distance > 15) {
        put_line(out, "leader", p->x, p->y, nearest(p->x, l->at.x0, l->at.x1),
                 nearest(p->y, l->at.y0, l->at.y1));
    }
    emit(out, "<text class=\"halo\" text-anchor=\"%s\" x=\"%x\" y=\"%x\">", anchors[l->anchor + 1],
         x, l->at.y1 - 3.5);
    if (l->named) put_escaped(out, p->cache->cache, max_name);
    else emit(out, "%d", p->key);
    fputs("</text>\n", out);
}

// KL AGAINST BITS

static int by_bits(const void* a, const void* b)
{
    const point *p = a, *q = b;
    if (p->bits != q->bits) return p->bits < q->bits ? -1 : 1;
    return p->kl < q->kl ? -1 : p->kl > q->kl;
}

// The front as steps: with so many bits, so little KL can be had. points are sorted by bits.
static void draw_front(FILE* out, const point* points, int count, const frame* f)
{
    bool begun = false;
    fputs("<path class=\"pareto\" d=\"", out);
    for (int i = 0; i < count; i++) {
        if (!points[i].front) continue;
        if (begun) emit(out, "H%xV%x", points[i].x, points[i].y);
        else emit(out, "M%x %xV%x", points[i].x, f->top, points[i].y);
        begun = true;
    }
    emit(out, "H%x\"/>\n", f->right);
}

static void draw_point(FILE* out, const point* p)
{
    emit(out, "<g class=\"c%d\">", color_of(p->key));
    if (p->bar_top < p->bar_end) put_line(out, "err", p->x, p->bar_top, p->x, p->bar_end);
    emit(out, "<circle class=\"dot%s\" cx=\"%x\" cy=\"%x\" r=\"5.5\"><title>",
         p->front ? " front" : "", p->x, p->y);
    emit(out, "%d %e: %n bits, KL x 1000 = %n", p->key, p->cache->cache, p->bits, p->kl);
    if (p->se > 0) emit(out, " &#177; %n", p->se);
    emit(out, "%s</title></circle></g>\n", p->front ? ", on the Pareto front" : "");
}

static void draw_cost(FILE* out, const eval_results* results, point* points, int count,
                      const frame* f, const double* values, label* labels)
{
    axis y, x = { .log = true, .from = f->left, .to = f->right };
    if (!make_log_axis(&y, f, values, count)) return;
    char text[96];
    x.lo = fmax(0.5, floor(points[0].bits * 2 - 0.3) / 2);
    x.hi = ceil(points[count - 1].bits * 1.04);
    begin_svg(out, f->wide ? "wide" : "narrow", f->width, f->height,
              "KL divergence against bits a value");
    draw_log_axis(out, &y, f, "KL divergence x 1000 (log scale; lower is better)");
    draw_bits_axis(out, &x, f);
    draw_frame(out, f);
    snprintf(text, sizeof text, "bits a value, all that is allocated at %lld tokens",
             (long long)results->context);
    draw_x_label(out, f, text);
    for (int i = 0; i < count; i++) {
        points[i].x = axis_at(&x, points[i].bits);
        points[i].y = points[i].bar_top = points[i].bar_end = axis_at(&y, points[i].kl);
        const double above = axis_at(&y, points[i].kl + points[i].se);
        const double below = axis_at(&y, points[i].kl - points[i].se);
        // A bar that ends within the marker says nothing.
        if (points[i].kl <= 0 || below - above <= 11) continue;
        points[i].bar_top = above;
        points[i].bar_end = below;
    }
    draw_front(out, points, count, f);
    place_labels(points, count, f, labels);
    for (int i = 0; i < count; i++) draw_point(out, &points[i]);
    for (int i = 0; i < count; i++) draw_label(out, &points[i], &labels[i]);
    fputs("</svg>\n", out);
}

static bool write_cost(FILE* out, const eval_results* results, const point* given, int count)
{
    bool any = false;
    for (int i = 0; i < count; i++) any = any || given[i].kl > 0;
    if (!any) return true;
    point* points = malloc((size_t)count * sizeof *points);
    label* labels = malloc((size_t)count * sizeof *labels);
    double* values = malloc((size_t)count * sizeof *values);
    const bool ok = points != NULL && labels != NULL && values != NULL;
    if (ok) {
        memcpy(points, given, (size_t)count * sizeof *points);
        qsort(points, (size_t)count, sizeof *points, by_bits);
        for (int i = 0; i < count; i++) values[i] = points[i].kl;
        fputs("<h2>KL against bits</h2>\n<p class=\"note\">The dashed line is the Pareto front: "
              "filled marks are on it, hollow ones are beaten in bits and in KL by another cache. "
              "Bars are one standard error over windows, where they are longer than the mark."
              "</p>\n<figure>\n", out);
        draw_cost(out, results, points, count, &wide_frame, values, labels);
        draw_cost(out, results, points, count, &narrow_frame, values, labels);
        put_legend(out, given, count);
        fputs("</figure>\n", out);
    }
    free(points);
    free(labels);
    free(values);
    return ok;
}

// TABLE

enum {
    COLUMN_BITS_KEY, COLUMN_BITS_VALUE, COLUMN_BITS_BODY, COLUMN_BITS_TOTAL,
    COLUMN_KL, COLUMN_KL_SE, COLUMN_KL_MEDIAN, COLUMN_KL_P99, COLUMN_TOP1,
    COLUMN_PERPLEXITY, COLUMN_DIFF, COLUMN_DIFF_SE, COLUMN_SPEED, COLUMN_BYTES, NUM_COLUMNS
};

typedef struct column {
    const char* group;       // heading over neighbors of the same group; "": none
    const char* head;
    const char* about;
    int decimals;            // -1: three digits that count
    bool error;              // a standard error, beside its value
} column;

static const column columns[NUM_COLUMNS] = {
    { "bits a value", "keys", "bits of a key's value in pages", 2, false },
    { "bits a value", "values", "bits of a value's value in pages", 2, false },
    { "bits a value", "body", "keys and values in pages", 2, false },
    { "bits a value", "total", "all that is allocated: windows, metadata, padding", 2, false },
    { "KL x 1000", "mean", "mean KL divergence of the next token's distribution", -1, false },
    { "KL x 1000", "&#177; SE", "standard error over windows", -1, true },
    { "KL x 1000", "median", "half of the positions are below", -1, false },
    { "KL x 1000", "p99", "99 % of the positions are below", -1, false },
    { "", "top-1 %", "positions where both have the same most probable token", 2, false },
    { "perplexity", "value", "perplexity of the text", 3, false },
    { "perplexity", "diff.", "perplexity minus the base's", 4, false },
    { "perplexity", "&#177; SE", "standard error of the difference, paired", 4, true },
    { "", "tokens/s", "decoding at the end of the context", 1, false },
    { "", "MiB", "the cache after one window", 2, false },
};

typedef struct cell { number text; double value; } cell;

static double value_of(const eval_results* results, int key, int which)
{
    const eval_cache* c = cache_of(results, key);
    const bool base = key == 0;
    switch (which) {
    case COLUMN_BITS_KEY: return c->bits_key;
    case COLUMN_BITS_VALUE: return c->bits_value;
    case COLUMN_BITS_BODY: return c->bits_body;
    case COLUMN_BITS_TOTAL: return c->bits_total;
    case COLUMN_KL: return base ? 0 : c->kl * 1000;
    case COLUMN_KL_SE: return base ? NAN : c->kl_se * 1000;
    case COLUMN_KL_MEDIAN: return base ? NAN : c->kl_median * 1000;
    case COLUMN_KL_P99: return base ? NAN : c->kl_p99 * 1000;
    case COLUMN_TOP1: return base ? NAN : c->top1 * 100;
    case COLUMN_PERPLEXITY: return base ? results->base_perplexity : c->perplexity;
    case COLUMN_DIFF: return base ? NAN : c->perplexity_diff;
    case COLUMN_DIFF_SE: return base ? NAN : c->perplexity_diff_se;
    case COLUMN_SPEED: return c->tokens_per_second > 0 ? c->tokens_per_second : NAN;
    default: return c->cache_bytes > 0 ? (double)c->cache_bytes / 1048576 : NAN;
    }
}

static void fill_cell(cell* out, double value, const column* c)
{
    out->value = value;
    if (c->decimals < 0) set_number(&out->text, value, c->error ? 2 : 3);
    else set_fixed(&out->text, value, c->decimals);
    if (c->error && isfinite(value)) {
        const number plain = out->text;
        snprintf(out->text.text, sizeof out->text.text, "&#177; %.36s", plain.text);
    }
}

// Letters after a number's point, the point included: what a column pads to line its points up.
static int places_of(const cell* c)
{
    const char* at = strchr(c->text.text, '.');
    if (!isfinite(c->value) || strchr(c->text.text, 'e') != NULL || at == NULL) return 0;
    return (int)strlen(at);
}

static void put_cell(FILE* out, const cell* c, const column* about, int places)
{
    fputs("<td", out);
    if (about->error) fputs(" class=\"se\"", out);
    if (isfinite(c->value)) {
        number sort;
        set_number(&sort, c->value, 9);
        emit(out, " data-v=\"%s\"", sort.text);
    }
    emit(out, ">%s", about->error && !isfinite(c->value) ? "" : c->text.text);
    // A point's and a digit's width, as spaces.
    const int own = places_of(c);
    if (!about->error && isfinite(c->value) && strchr(c->text.text, 'e') == NULL) {
        for (int i = own; i < places; i++) fputs(i == 0 ? "&#8200;" : "&#8199;", out);
    }
    fputs("</td>", out);
}

static void write_heads(FILE* out, const bool* shown)
{
    fputs("<thead>\n<tr><th class=\"name\" rowspan=\"2\">cache</th>", out);
    int at = 1;
    for (int i = 0; i < NUM_COLUMNS;) {
        int span = 0, first = i;
        for (; i < NUM_COLUMNS && strcmp(columns[i].group, columns[first].group) == 0; i++) {
            span += shown[i];
            if (columns[first].group[0] == '\0') {
                i++;
                break;
            }
        }
        if (span == 0) continue;
        if (columns[first].group[0] == '\0') {
            emit(out, "<th rowspan=\"2\" data-c=\"%d\" title=\"%e\">%s</th>", at,
                 columns[first].about, columns[first].head);
        } else {
            emit(out, "<th class=\"group\" colspan=\"%d\">%s</th>", span, columns[first].group);
        }
        at += span;
    }
    fputs("</tr>\n<tr>", out);
    at = 1;
    for (int i = 0; i < NUM_COLUMNS; i++) {
        if (columns[i].group[0] != '\0' && shown[i]) {
            emit(out, "<th%s data-c=\"%d\" title=\"%e\">%s</th>",
                 columns[i].error ? " class=\"se\"" : "", at, columns[i].about, columns[i].head);
        }
        at += shown[i];
    }
    fputs("</tr>\n</thead>\n", out);
}

static void write_row(FILE* out, const eval_results* results, int key, const cell* cells,
                      const bool* shown, const int* places, bool front)
{
    const eval_cache* cache = cache_of(results, key);
    int num_shown = 0;
    for (int i = 0; i < NUM_COLUMNS; i++) num_shown += shown[i];
    put_row_name(out, results, key, front);
    if (cache->error[0] != '\0') {
        emit(out, "<td class=\"why\" colspan=\"%d\">%e</td>", num_shown, cache->error);
    } else {
        for (int i = 0; i < NUM_COLUMNS; i++) {
            if (shown[i]) put_cell(out, &cells[i], &columns[i], places[i]);
        }
    }
    fputs("</tr>\n", out);
}

static bool write_table(FILE* out, const eval_results* results, const point* points, int count)
{
    const int num_rows = results->num_caches + 1;
    cell* cells = calloc((size_t)num_rows * NUM_COLUMNS, sizeof *cells);
    if (cells == NULL) return false;
    bool shown[NUM_COLUMNS] = { false };
    int places[NUM_COLUMNS] = { 0 };
    for (int key = 0; key < num_rows; key++) {
        if (cache_of(results, key)->error[0] != '\0') continue;
        for (int i = 0; i < NUM_COLUMNS; i++) {
            cell* c = &cells[key * NUM_COLUMNS + i];
            fill_cell(c, value_of(results, key, i), &columns[i]);
            if (!isnan(c->value)) shown[i] = true;
            if (places_of(c) > places[i]) places[i] = places_of(c);
        }
    }
    fputs("<h2>Results</h2>\n<div class=\"scroll\"><table class=\"data sorts\">\n", out);
    write_heads(out, shown);
    fputs("<tbody>\n", out);
    for (int key = 0; key < num_rows; key++) {
        write_row(out, results, key, &cells[key * NUM_COLUMNS], shown, places,
                  on_front(points, count, key));
    }
    fputs("</tbody>\n</table></div>\n<p class=\"note\">KL divergence of the next token's "
          "distribution from the base's, in nats times 1000. A filled number is on the Pareto "
          "front of KL and total bits.</p>\n", out);
    free(cells);
    return true;
}

// SPEED

static int64_t next_length(const eval_results* results, int64_t after)
{
    int64_t best = INT64_MAX;
    for (int key = 0; key <= results->num_caches; key++) {
        const eval_cache* c = cache_of(results, key);
        for (int i = 0; i < c->num_speeds && c->error[0] == '\0'; i++) {
            const int64_t rows = c->speeds[i].rows;
            if (rows > after && rows < best) best = rows;
        }
    }
    return best;
}

static void write_speeds(FILE* out, const eval_results* results, const point* points, int count)
{
    if (next_length(results, -1) == INT64_MAX) return;
    fputs("<h2>Decoding speed</h2>\n<p class=\"note\">Tokens a second with so many tokens in the "
          "cache.</p>\n<div class=\"scroll\"><table class=\"data sorts\">\n<thead>\n"
          "<tr><th class=\"name\">cache</th>", out);
    int at = 1;
    for (int64_t n = next_length(results, -1); n != INT64_MAX; n = next_length(results, n)) {
        emit(out, "<th data-c=\"%d\">%l tokens</th>", at++, n);
    }
    fputs("</tr>\n</thead>\n<tbody>\n", out);
    for (int key = 0; key <= results->num_caches; key++) {
        const eval_cache* c = cache_of(results, key);
        if (c->num_speeds == 0 || c->error[0] != '\0') continue;
        put_row_name(out, results, key, on_front(points, count, key));
        for (int64_t n = next_length(results, -1); n != INT64_MAX; n = next_length(results, n)) {
            cell shown = { .value = NAN };
            for (int i = 0; i < c->num_speeds; i++) {
                if (c->speeds[i].rows == n) shown.value = c->speeds[i].tokens_per_second;
            }
            fill_cell(&shown, shown.value, &columns[COLUMN_SPEED]);
            put_cell(out, &shown, &columns[COLUMN_SPEED], 0);
        }
        fputs("</tr>\n", out);
    }
    fputs("</tbody>\n</table></div>\n", out);
}

// LINES: KL by position, and along a generation

typedef struct chart_line {
    int key;
    const eval_cache* cache;
    double sum[max_bins];
    int64_t count[max_bins];
    double y[max_bins];      // mean times 1000; NaN: nothing there
    double end;              // coordinate of the number at the right
} chart_line;

typedef struct chart {
    chart_line* lines;       // [num_lines]
    int num_lines, num_bins;
    int64_t first, length;   // of x
    const char* x_label;
    const char* x_word;      // in hover texts
} chart;

// Makes means of the sums. Lines that hold nothing are dropped, and lines that are 0 everywhere
// too: a log scale has no place for them. zeros: how many of the latter, moved behind num_lines.
static int finish_chart(chart* c)
{
    int kept = 0, zeros = 0;
    for (int i = 0; i < c->num_lines; i++) {
        chart_line* line = &c->lines[i];
        bool any = false, above = false;
        for (int b = 0; b < c->num_bins; b++) {
            line->y[b] = line->count[b] > 0 ? line->sum[b] / (double)line->count[b] * 1000 : NAN;
            any = any || line->count[b] > 0;
            above = above || line->y[b] > 0;
        }
        if (!any) continue;
        const chart_line moved = *line;
        if (above) {
            c->lines[kept + zeros] = c->lines[kept];
            c->lines[kept++] = moved;
        } else {
            c->lines[kept + zeros++] = moved;
        }
    }
    c->num_lines = kept;
    return zeros;
}

static void add_to_bin(const chart* c, chart_line* line, int64_t index, double value)
{
    if (!isfinite(value)) return;
    const int64_t bin = index * c->num_bins / c->length;
    line->sum[bin] += value;
    line->count[bin]++;
}

static double bin_middle(const chart* c, int bin)
{
    return (double)c->first + ((double)bin + 0.5) * (double)c->length / c->num_bins - 0.5;
}

static void draw_line(FILE* out, const chart* c, const chart_line* line, const axis* x,
                      const axis* y, const frame* f)
{
    bool begun = false;
    emit(out, "<g class=\"line c%d d%d\"><title>%d %e</title><path class=\"curve\" d=\"",
         color_of(line->key), dash_of(line->key), line->key, line->cache->cache);
    for (int b = 0; b < c->num_bins; b++) {
        if (isnan(line->y[b])) {
            begun = false;
            continue;
        }
        emit(out, "%s%x %x", begun ? "L" : "M", axis_at(x, bin_middle(c, b)),
             axis_at(y, line->y[b]));
        begun = true;
    }
    fputs("\"/>\n", out);
    // Hover values; a phone has no pointer to hover with.
    for (int b = 0; b < c->num_bins && f->wide; b++) {
        if (isnan(line->y[b])) continue;
        emit(out, "<circle class=\"hit\" cx=\"%x\" cy=\"%x\" r=\"5\"><title>%d %e, %s %l: KL x "
             "1000 = %n</title></circle>\n", axis_at(x, bin_middle(c, b)), axis_at(y, line->y[b]),
             line->key, line->cache->cache, c->x_word, (int64_t)bin_middle(c, b), line->y[b]);
    }
    emit(out, "<text class=\"endnum\" x=\"%x\" y=\"%x\">%d</text></g>\n", f->right + 5,
         line->end + 4, line->key);
}

// Numbers at the right end of lines, at least 13 px apart: pushed down in order, then back up.
static void spread_ends(const chart* c, const axis* y, const frame* f, int* order)
{
    for (int i = 0; i < c->num_lines; i++) {
        double last = NAN;
        for (int b = 0; b < c->num_bins; b++) {
            if (!isnan(c->lines[i].y[b])) last = c->lines[i].y[b];
        }
        c->lines[i].end = axis_at(y, last);
        int at = i;
        for (; at > 0 && c->lines[order[at - 1]].end > c->lines[i].end; at--) {
            order[at] = order[at - 1];
        }
        order[at] = i;
    }
    for (int i = 1; i < c->num_lines; i++) {
        chart_line *above = &c->lines[order[i - 1]], *line = &c->lines[order[i]];
        line->end = fmax(line->end, above->end + 13);
    }
    double limit = f->bottom;
    for (int i = c->num_lines - 1; i >= 0; i--) {
        chart_line* line = &c->lines[order[i]];
        line->end = fmin(line->end, limit);
        limit = line->end - 13;
    }
}

static void draw_chart(FILE* out, const chart* c, const frame* f, const double* values, int* order)
{
    axis y, x = { .lo = (double)c->first, .hi = (double)(c->first + c->length),
                  .from = f->left, .to = f->right };
    if (!make_log_axis(&y, f, values, c->num_lines * c->num_bins)) return;
    begin_svg(out, f->wide ? "wide" : "narrow", f->width, f->height, c->x_label);
    draw_log_axis(out, &y, f, "KL divergence x 1000 (log scale)");
    draw_linear_axis(out, &x, f);
    draw_frame(out, f);
    draw_x_label(out, f, c->x_label);
    spread_ends(c, &y, f, order);
    fputs("<g class=\"lines\">\n", out);
    for (int i = 0; i < c->num_lines; i++) draw_line(out, c, &c->lines[i], &x, &y, f);
    fputs("</g>\n</svg>\n", out);
}

static bool write_chart(FILE* out, chart* c, const point* points, int count)
{
    const int zeros = finish_chart(c);
    if (c->num_lines > 0) {
        double* values = malloc((size_t)c->num_lines * max_bins * sizeof *values);
        int* order = malloc((size_t)c->num_lines * sizeof *order);
        if (values == NULL || order == NULL) {
            free(values);
            free(order);
            return false;
        }
        for (int i = 0; i < c->num_lines * c->num_bins; i++) {
            values[i] = c->lines[i / c->num_bins].y[i % c->num_bins];
        }
        fputs("<figure>\n", out);
        draw_chart(out, c, &wide_frame, values, order);
        draw_chart(out, c, &narrow_frame, values, order);
        fputs("<ul class=\"legend\">\n", out);
        for (int i = 0; i < c->num_lines; i++) {
            fputs("<li>", out);
            put_key(out, c->lines[i].key, on_front(points, count, c->lines[i].key));
            emit(out, "%e</li>\n", c->lines[i].cache->cache);
        }
        fputs("</ul>\n</figure>\n", out);
        free(values);
        free(order);
    }
    for (int i = 0; i < zeros; i++) {
        const chart_line* line = &c->lines[c->num_lines + i];
        emit(out, i == 0 ? "<p class=\"note\">KL is 0 everywhere: %d %e" : ", %d %e", line->key,
             line->cache->cache);
    }
    if (zeros > 0) fputs(".</p>\n", out);
    return true;
}

static bool write_positions(FILE* out, const eval_results* results, const point* points, int count)
{
    const int64_t length = results->num_positions;
    chart c = { .num_bins = length < max_bins ? (int)length : max_bins, .first = results->skip,
                .length = length, .x_label = "position in the window (tokens)",
                .x_word = "position" };
    if (length <= 0 || results->num_caches <= 0) return true;
    c.lines = calloc((size_t)results->num_caches, sizeof *c.lines);
    if (c.lines == NULL) return false;
    bool any = false;
    for (int i = 0; i < results->num_caches; i++) {
        const eval_cache* cache = &results->caches[i];
        chart_line* line = &c.lines[c.num_lines++];
        line->key = i + 1;
        line->cache = cache;
        for (int w = 0; w < results->num_windows && cache->windows != NULL; w++) {
            const eval_window* window = &cache->windows[w];
            if (!window->done || window->kl == NULL || cache->error[0] != '\0') continue;
            for (int64_t p = 0; p < length; p++) add_to_bin(&c, line, p, (double)window->kl[p]);
            any = true;
        }
    }
    bool ok = true;
    if (any) {
        emit(out, "<h2>KL by position</h2>\n<p class=\"note\">Each point is a mean of about %l "
             "positions in %d window%s. The number at a line's end is its cache.</p>\n",
             (length + c.num_bins / 2) / c.num_bins, results->num_windows,
             results->num_windows == 1 ? "" : "s");
        ok = write_chart(out, &c, points, count);
    }
    free(c.lines);
    return ok;
}

// HEAT MAPS

// t from 0 to 1 as a color of viridis: even steps in lightness, also without red or green.
static uint32_t viridis(double t)
{
    static const uint32_t stops[num_viridis] = {
        0x440154, 0x472d7b, 0x3b528b, 0x2c728e, 0x21918c, 0x28ae80, 0x5ec962, 0xaddc30, 0xfde725
    };
    const double at = fmin(fmax(t, 0), 1) * (num_viridis - 1);
    const int low = at >= num_viridis - 1 ? num_viridis - 2 : (int)at;
    uint32_t color = 0;
    for (int shift = 16; shift >= 0; shift -= 8) {
        const double a = (double)(stops[low] >> shift & 255);
        const double b = (double)(stops[low + 1] >> shift & 255);
        color = color << 8 | (uint32_t)(a + (b - a) * (at - low) + 0.5);
    }
    return color;
}

typedef struct color_scale { double lo, hi; } color_scale;   // log

static double scale_at(const color_scale* s, double value)
{
    return value > s->lo ? log(value / s->lo) / log(s->hi / s->lo) : 0;
}

static void put_cell_rect(FILE* out, double x, double y, double w, double h, double t)
{
    char color[8];
    snprintf(color, sizeof color, "#%06x", (unsigned)viridis(t));
    emit(out, "<rect class=\"cell\" x=\"%x\" y=\"%x\" width=\"%x\" height=\"%x\" fill=\"%s\">", x,
         y, w, h, color);
}

static int most_heads(const eval_cache* cache)
{
    int most = 0;
    for (int l = 0; l < cache->num_layers; l++) {
        if (cache->layers[l].num_q_heads > most) most = cache->layers[l].num_q_heads;
    }
    return most;
}

static double layer_error(const eval_layer* layer, int head, bool output)
{
    const double* errors = output ? layer->output_error : layer->score_error;
    return errors == NULL || head >= layer->num_q_heads ? NAN : errors[head];
}

// One scale for all caches, so that their colors compare; four decades at most.
static bool find_scale(const eval_results* results, color_scale* scale)
{
    double lo = INFINITY, hi = 0;
    for (int i = 0; i < results->num_caches; i++) {
        const eval_cache* c = &results->caches[i];
        for (int at = 0; c->error[0] == '\0' && at < 2 * c->num_layers; at++) {
            const eval_layer* layer = &c->layers[at / 2];
            for (int h = 0; h < layer->num_q_heads; h++) {
                const double e = layer_error(layer, h, at % 2 == 1);
                if (!isfinite(e) || e <= 0) continue;
                lo = fmin(lo, e);
                hi = fmax(hi, e);
            }
        }
    }
    if (hi <= 0) return false;
    scale->hi = round_125(hi, true);
    scale->lo = round_125(fmax(lo, scale->hi / 1e4), false);
    if (scale->lo >= scale->hi) scale->lo = round_125(scale->hi / 2.5, false);
    return true;
}

static void draw_scale(FILE* out, const color_scale* s)
{
    const double left = 12, width = 300;
    fputs("<svg viewBox=\"0 0 330 48\" style=\"max-width:330px\" role=\"img\" "
          "aria-label=\"colors of relative errors\">\n", out);
    for (int i = 0; i < 60; i++) {
        const double x = left + width * i / 60;
        char color[8];
        snprintf(color, sizeof color, "#%06x", (unsigned)viridis((i + 0.5) / 60));
        emit(out, "<rect x=\"%x\" y=\"2\" width=\"5.6\" height=\"14\" fill=\"%s\"/>", x, color);
    }
    // Powers of ten have their names first, then 2 and 5 where there is room.
    static const int ranked[] = { 1, 2, 5 };
    const int first = (int)floor(log10(s->lo) + 1e-9), last = (int)ceil(log10(s->hi));
    double used[32];
    int count = 0;
    for (int rank = 0; rank < 3; rank++) {
        for (int e = first; e <= last; e++) {
            const double value = ranked[rank] * pow(10, e);
            const double x = left + width * scale_at(s, value);
            bool fits = value >= s->lo * 0.999 && value <= s->hi * 1.001 && count < 32;
            for (int i = 0; i < count && fits; i++) fits = fabs(used[i] - x) >= 36;
            if (!fits) continue;
            used[count++] = x;
            put_line(out, "grid", x, 16, x, 21);
            emit(out, "<text class=\"tick\" text-anchor=\"middle\" x=\"%x\" y=\"36\">", x);
            put_tick(out, value);
            fputs("</text>\n", out);
        }
    }
    fputs("</svg>\n", out);
}

static void draw_map_axes(FILE* out, const eval_cache* c, double left, double top, double w,
                          double h, int heads)
{
    const int every_layer = c->num_layers > 20 ? 4 : c->num_layers > 10 ? 2 : 1;
    const int every_head = heads > 20 ? 4 : heads > 10 ? 2 : 1;
    for (int l = 0; l < c->num_layers; l += every_layer) {
        emit(out, "<text class=\"tick\" text-anchor=\"middle\" x=\"%x\" y=\"%x\">%d</text>",
             left + w * (l + 0.5), top + h * heads + 15, l);
    }
    for (int i = 0; i < heads; i += every_head) {
        emit(out, "<text class=\"tick\" text-anchor=\"end\" x=\"%x\" y=\"%x\">%d</text>", left - 6,
             top + h * (i + 0.5) + 4, i);
    }
    emit(out, "\n<text class=\"axis\" x=\"%x\" y=\"%x\">layer</text>", left,
         top + h * heads + 32);
    emit(out, "<text class=\"axis\" text-anchor=\"end\" transform=\"translate(12 %x) "
         "rotate(-90)\">query head</text>\n", top);
}

static void draw_map(FILE* out, const eval_cache* c, const color_scale* scale, bool output)
{
    const int heads = most_heads(c);
    const double left = 44, top = 26, room = 440;
    const double w = fmin(max_layer_px, room / c->num_layers);
    const double h = fmin(26, fmax(w, 14));
    const char* const title = output ? "Outputs" : "Scores";
    const double gap = w > 6 ? 1 : 0;
    begin_svg(out, "map", left + room, fmax(top + h * heads, 96) + 38, title);
    emit(out, "<text x=\"%x\" y=\"16\">%s</text>\n", left, title);
    for (int l = 0; l < c->num_layers; l++) {
        for (int i = 0; i < c->layers[l].num_q_heads; i++) {
            const double error = layer_error(&c->layers[l], i, output);
            if (!isfinite(error)) continue;
            put_cell_rect(out, left + w * l, top + h * i, w - gap, h - gap, scale_at(scale, error));
            emit(out, "<title>layer %d, head %d: %n</title></rect>\n", l, i, error);
        }
    }
    draw_map_axes(out, c, left, top, w, h, heads);
    fputs("</svg>\n", out);
}

// Mean of both errors, and where the outputs are worst: what a folded map says.
static void put_map_summary(FILE* out, const eval_cache* c)
{
    double sum[2] = { 0, 0 }, worst = -1;
    int count[2] = { 0, 0 }, worst_layer = 0, worst_head = 0;
    for (int l = 0; l < c->num_layers; l++) {
        for (int at = 0; at < 2 * c->layers[l].num_q_heads; at++) {
            const double error = layer_error(&c->layers[l], at / 2, at % 2 == 1);
            if (!isfinite(error)) continue;
            sum[at % 2] += error;
            count[at % 2]++;
            if (at % 2 == 0 || error <= worst) continue;
            worst = error;
            worst_layer = l;
            worst_head = at / 2;
        }
    }
    fputs("<span class=\"note\">", out);
    if (count[0] > 0) emit(out, "mean of scores %n", sum[0] / count[0]);
    if (count[1] > 0) {
        emit(out, "%s of outputs %n; worst output %n in layer %d, head %d",
             count[0] > 0 ? "," : "mean", sum[1] / count[1], worst, worst_layer, worst_head);
    }
    fputs("</span>", out);
}

static bool has_map(const eval_cache* c)
{
    return c->error[0] == '\0' && c->num_layers > 0 && c->layers != NULL && most_heads(c) > 0;
}

// The summary of a cache's folded part, up to what it says; the first one is open.
static void begin_fold(FILE* out, const eval_results* results, int key, bool open, bool front)
{
    emit(out, "<details%s>\n<summary>", open ? " open=\"open\"" : "");
    put_key(out, key, front);
    emit(out, "%e ", cache_of(results, key)->cache);
}

static void write_maps(FILE* out, const eval_results* results, const point* points, int count)
{
    color_scale scale;
    bool open = true;
    if (!find_scale(results, &scale)) return;
    fputs("<h2>Error by layer and head</h2>\n<p class=\"note\">Relative error of the scores q.k "
          "and of the attention's outputs that each query head has with the rows as the cache "
          "holds them. Colors mean the same in all maps (log scale):</p>\n", out);
    draw_scale(out, &scale);
    for (int key = 1; key <= results->num_caches; key++) {
        const eval_cache* c = cache_of(results, key);
        if (!has_map(c)) continue;
        begin_fold(out, results, key, open, on_front(points, count, key));
        put_map_summary(out, c);
        fputs("</summary>\n<div class=\"maps\">\n", out);
        draw_map(out, c, &scale, false);
        draw_map(out, c, &scale, true);
        fputs("</div>\n</details>\n", out);
        open = false;
    }
}

// NEEDLES

static void draw_needle(FILE* out, const eval_needle* needle)
{
    const double left = 62, top = 8, w = 32, h = 28;
    const double bottom = top + h * needle->num_lengths;
    begin_svg(out, "needle", left + w * EVAL_DEPTHS + 4, bottom + 38, "needles that were found");
    for (int i = 0; i < needle->num_lengths; i++) {
        emit(out, "<text class=\"tick\" text-anchor=\"end\" x=\"%x\" y=\"%x\">%l</text>\n",
             left - 7, top + h * i + h / 2 + 4, needle->lengths[i]);
        for (int d = 0; d < EVAL_DEPTHS; d++) {
            const double rate = (double)needle->hits[i][d] / needle->trials;
            put_cell_rect(out, left + w * d, top + h * i, w - 2, h - 2, rate);
            emit(out, "<title>%l tokens, depth %d %%: %d of %d</title></rect>",
                 needle->lengths[i], d * 100 / EVAL_DEPTHS, needle->hits[i][d], needle->trials);
            // Letters on a cell are dark where viridis is light, in both schemes.
            emit(out, "<text text-anchor=\"middle\" pointer-events=\"none\" style=\"fill:%s;"
                 "font-size:12px\" x=\"%x\" y=\"%x\">%d</text>\n", rate > 0.55 ? "#111" : "#fff",
                 left + w * d + w / 2 - 1, top + h * i + h / 2 + 3, (int)(rate * 100 + 0.5));
        }
    }
    for (int d = 0; d < EVAL_DEPTHS; d++) {
        emit(out, "<text class=\"tick\" text-anchor=\"middle\" x=\"%x\" y=\"%x\">%d</text>",
             left + w * d + w / 2 - 1, bottom + 14, d * 100 / EVAL_DEPTHS);
    }
    emit(out, "\n<text class=\"axis\" x=\"%x\" y=\"%x\">depth of the needle (%%)</text>\n", left,
         bottom + 32);
    emit(out, "<text class=\"axis\" text-anchor=\"end\" x=\"%x\" y=\"%x\">tokens</text>\n",
         left - 7, bottom + 14);
    fputs("</svg>\n", out);
}

static void write_needles(FILE* out, const eval_results* results, const point* points, int count)
{
    bool any = false;
    for (int key = 0; key <= results->num_caches; key++) {
        const eval_cache* c = cache_of(results, key);
        const eval_needle* needle = &c->needle;
        if (c->error[0] != '\0' || needle->num_lengths <= 0 || needle->trials <= 0) continue;
        if (!any) {
            fputs("<h2>Needles</h2>\n<p class=\"note\">Facts hidden in filler text: percent that "
                  "the model repeats exactly, by length of the text and depth of the fact.</p>\n"
                  "<div class=\"maps\">\n", out);
        }
        any = true;
        int hits = 0;
        for (int i = 0; i < needle->num_lengths; i++) {
            for (int d = 0; d < EVAL_DEPTHS; d++) hits += needle->hits[i][d];
        }
        const int trials = needle->num_lengths * EVAL_DEPTHS * needle->trials;
        fputs("<figure>\n<h3>", out);
        put_key(out, key, on_front(points, count, key));
        emit(out, "<span>%e</span></h3>\n<p class=\"note\">%d of %d found</p>\n", c->cache, hits,
             trials);
        draw_needle(out, needle);
        fputs("</figure>\n", out);
    }
    if (any) fputs("</div>\n", out);
}

// GENERATIONS

// Tokens of the longest generation; most: generations of a cache.
static int longest_generation(const eval_results* results, int* most)
{
    int longest = 0;
    *most = 0;
    for (int i = 0; i < results->num_caches; i++) {
        const eval_cache* c = &results->caches[i];
        if (c->error[0] != '\0') continue;
        if (c->num_generations > *most) *most = c->num_generations;
        for (int g = 0; g < c->num_generations; g++) {
            if (c->generations[g].num_tokens > longest) longest = c->generations[g].num_tokens;
        }
    }
    return longest;
}

static void write_divergence(FILE* out, const eval_results* results, int prompts,
                             const point* points, int count)
{
    fputs("<div class=\"scroll\"><table class=\"data sorts\">\n<thead>\n"
          "<tr><th class=\"name\">cache</th><th data-c=\"1\">mean KL x 1000</th>", out);
    for (int g = 0; g < prompts; g++) {
        emit(out, "<th data-c=\"%d\">prompt %d</th>", g + 2, g + 1);
    }
    fputs("</tr>\n</thead>\n<tbody>\n", out);
    for (int key = 1; key <= results->num_caches; key++) {
        const eval_cache* c = cache_of(results, key);
        if (c->error[0] != '\0' || c->num_generations == 0) continue;
        double sum = 0;
        int64_t n = 0;
        for (int g = 0; g < c->num_generations; g++) {
            const eval_generation* one = &c->generations[g];
            for (int t = 0; t < one->num_tokens && one->kl != NULL; t++, n++) sum += one->kl[t];
        }
        cell mean;
        fill_cell(&mean, n > 0 ? sum / (double)n * 1000 : NAN, &columns[COLUMN_KL]);
        put_row_name(out, results, key, on_front(points, count, key));
        put_cell(out, &mean, &columns[COLUMN_KL], 0);
        for (int g = 0; g < c->num_generations; g++) {
            const eval_generation* one = &c->generations[g];
            const bool same = one->first_divergence < 0;
            const int at = same ? one->num_tokens : one->first_divergence;
            const double share = one->num_tokens > 0 ? (double)at / one->num_tokens : 0;
            emit(out, "<td class=\"bar\" data-v=\"%d\" style=\"--p:%p%%\">", at, share);
            if (same) emit(out, "none in %d</td>", one->num_tokens);
            else emit(out, "%d</td>", at);
        }
        fputs("</tr>\n", out);
    }
    fputs("</tbody>\n</table></div>\n", out);
}

static bool write_generations(FILE* out, const eval_results* results, const point* points,
                              int count)
{
    int prompts;
    const int longest = longest_generation(results, &prompts);
    if (longest <= 0) return true;
    chart c = { .num_bins = longest < max_bins ? longest : max_bins, .length = longest,
                .x_label = "token of the generation", .x_word = "token" };
    c.lines = calloc((size_t)results->num_caches, sizeof *c.lines);
    if (c.lines == NULL) return false;
    for (int i = 0; i < results->num_caches; i++) {
        const eval_cache* cache = &results->caches[i];
        if (cache->error[0] != '\0') continue;
        chart_line* line = &c.lines[c.num_lines++];
        line->key = i + 1;
        line->cache = cache;
        for (int g = 0; g < cache->num_generations; g++) {
            const eval_generation* one = &cache->generations[g];
            for (int t = 0; t < one->num_tokens && one->kl != NULL; t++) {
                add_to_bin(&c, line, t, (double)one->kl[t]);
            }
        }
    }
    emit(out, "<h2>Long generations</h2>\n<p class=\"note\">Greedy generations of up to %d tokens "
         "from the same prompts: the first token that differs from the base's text, and KL along "
         "the base's text (mean over prompts).</p>\n", longest);
    write_divergence(out, results, prompts, points, count);
    const bool ok = write_chart(out, &c, points, count);
    free(c.lines);
    return ok;
}

// WORST TOKENS

static void write_candidates(FILE* out, const char* title, const eval_candidate* list,
                             int32_t target)
{
    emit(out, "<div><div class=\"dim\">%s</div><ol>\n", title);
    for (int i = 0; i < EVAL_TOP; i++) {
        const eval_candidate* c = &list[i];
        if (!isfinite(c->probability)) continue;
        // A list that is shorter than EVAL_TOP is zeroed behind its end.
        if (i > 0 && c->probability <= 0 && c->id == 0 && c->text[0] == '\0') continue;
        emit(out, "<li style=\"--p:%p%%\"%s title=\"token %d\"><code class=\"token\">",
             fmin(fmax(c->probability, 0), 1), c->id == target ? " class=\"next\"" : "", c->id);
        if (c->text[0] != '\0') put_token(out, c->text, true);
        else emit(out, "<span class=\"byte\">#%d</span>", c->id);
        emit(out, "</code><span>%p%%</span></li>\n", c->probability);
    }
    fputs("</ol></div>\n", out);
}

static void write_worst(FILE* out, const eval_worst* w, const char* base_name)
{
    emit(out, "<div class=\"card\">\n<div><b>KL %n</b> <span class=\"note\">window %d, position "
         "%l</span></div>\n<p class=\"context\">", w->kl, w->window, w->position);
    // The text may begin within a character.
    const char* before = w->before;
    while (((unsigned char)*before & 0xc0) == 0x80) before++;
    if (*before != '\0') fputs("<span class=\"byte\">&#8230;</span>", out);
    fputs("<bdi>", out);
    put_token(out, before, false);
    fputs("</bdi><mark><bdi>", out);
    if (w->target_text[0] != '\0') put_token(out, w->target_text, true);
    else emit(out, "#%d", (int)w->target);
    fputs("</bdi></mark></p>\n<div class=\"two\">\n", out);
    write_candidates(out, base_name, w->base, w->target);
    write_candidates(out, "this cache", w->cache, w->target);
    fputs("</div>\n</div>\n", out);
}

static void write_worsts(FILE* out, const eval_results* results, const point* points, int count)
{
    bool any = false;
    for (int key = 1; key <= results->num_caches; key++) {
        const eval_cache* c = cache_of(results, key);
        // Where even the worst token is exact there is nothing to look at.
        if (c->error[0] != '\0' || c->num_worst <= 0 || !(c->worst[0].kl > 0)) continue;
        if (!any) {
            fputs("<h2>Worst tokens</h2>\n<p class=\"note\">Where the distributions differ most, "
                  "in nats: the text, with the token that follows marked, and the most probable "
                  "tokens of both.</p>\n", out);
        }
        begin_fold(out, results, key, !any, on_front(points, count, key));
        emit(out, "<span class=\"note\">worst KL %n</span></summary>\n<div class=\"cards\">\n",
             c->worst[0].kl);
        for (int i = 0; i < c->num_worst && i < EVAL_WORST; i++) {
            if (c->worst[i].kl > 0) write_worst(out, &c->worst[i], "base");
        }
        fputs("</div>\n</details>\n", out);
        any = true;
    }
}

// HEAD AND CONFIGURATION

static const char* file_name(const char* path)
{
    const char* slash = strrchr(or_empty(path), '/');
    return slash != NULL ? slash + 1 : or_empty(path);
}

static void put_lines(FILE* out, const char* const* lines)
{
    for (; *lines != NULL; lines++) {
        fputs(*lines, out);
        fputc('\n', out);
    }
}

static const char* title_of(const eval_results* results)
{
    return results->model_name[0] != '\0' ? results->model_name : file_name(results->model);
}

static void write_head(FILE* out, const eval_results* results)
{
    const char* name = title_of(results);
    emit(out, "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
         "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
         "<title>kvloom-eval: %e</title>\n<style>\n", name);
    put_lines(out, style);
    emit(out, "</style>\n</head>\n<body>\n<h1>What a KV cache costs: %e</h1>\n", name);
    emit(out, "<p class=\"dim\">Next-token distributions with each cache against those of full "
         "precision (%e), on the same %d window%s of %l tokens. The first %l positions of each "
         "are not counted.</p>\n", results->base.cache, results->num_windows,
         results->num_windows == 1 ? "" : "s", results->context, results->skip);
    if (results->interrupted) {
        fputs("<p class=\"warn\">The run was interrupted: some windows are not done.</p>\n", out);
    }
    if (results->num_windows_asked > results->num_windows) {
        emit(out, "<p class=\"warn\">The text holds %d of the %d windows asked for.</p>\n",
             results->num_windows, results->num_windows_asked);
    }
    emit(out, "<dl>\n<dt>model</dt><dd>%e", name);
    if (results->architecture[0] != '\0') emit(out, ", %e", results->architecture);
    emit(out, ", %d layers, %d tokens in the vocabulary</dd>\n", results->num_layers,
         results->vocab_size);
    emit(out, "<dt>text</dt><dd>%e, %l tokens</dd>\n<dt>SHA-256 of the text</dt>"
         "<dd><code>%e</code></dd>\n", file_name(results->text), results->text_tokens,
         results->text_sha256);
    emit(out, "<dt>context</dt><dd>%l tokens, %l of them measured</dd>\n<dt>windows</dt>"
         "<dd>%d</dd>\n<dt>kvloom</dt><dd>%e</dd>\n</dl>\n", results->context,
         results->num_positions, results->num_windows, results->version);
}

static void write_cache_config(FILE* out, const eval_results* results, int key)
{
    const eval_cache* c = cache_of(results, key);
    fputs("<details>\n<summary>", out);
    put_key(out, key, false);
    emit(out, "%e</summary>\n<dl>\n", c->cache);
    if (c->canonical != NULL && c->canonical[0] != '\0') {
        emit(out, "<dt>spec</dt><dd><code>%e</code></dd>\n", c->canonical);
    }
    if (c->error[0] == '\0') {
        emit(out, "<dt>kernels</dt><dd>%s</dd>\n", c->generated ? "generated" : "reference");
    }
    if (c->compression > 0) {
        emit(out, "<dt>compression</dt><dd>%n times smaller than f16</dd>\n", c->compression);
    }
    if (c->bytes_per_token > 0) {
        emit(out, "<dt>bytes a token</dt><dd>%n</dd>\n", c->bytes_per_token);
    }
    if (c->rows_total > 0) {
        emit(out, "<dt>quantized rows</dt><dd>%l of %l at the end of a window</dd>\n",
             c->rows_quantized, c->rows_total);
    }
    fputs("</dl>\n", out);
    if (c->description != NULL && c->description[0] != '\0') {
        emit(out, "<pre>%e</pre>\n", c->description);
    }
    fputs("</details>\n", out);
}

static void write_config(FILE* out, const eval_results* results)
{
    fputs("<h2>Configuration</h2>\n", out);
    if (results->command != NULL && results->command[0] != '\0') {
        emit(out, "<p>To repeat the run:</p>\n<pre>%e</pre>\n", results->command);
    }
    emit(out, "<dl>\n<dt>model file</dt><dd><code>%e</code></dd>\n", results->model);
    if (results->model_fingerprint[0] != '\0') {
        emit(out, "<dt>its fingerprint</dt><dd><code>%e</code></dd>\n",
             results->model_fingerprint);
    }
    if (results->calibration != NULL) {
        emit(out, "<dt>calibration</dt><dd><code>%e</code></dd>\n<dt>its hash</dt><dd><code>%e"
             "</code></dd>\n", results->calibration, results->calibration_hash);
    }
    emit(out, "<dt>text file</dt><dd><code>%e</code></dd>\n<dt>skipped</dt><dd>%l positions of "
         "each window</dd>\n<dt>target</dt><dd>%e</dd>\n<dt>threads</dt><dd>%d</dd>\n<dt>seed"
         "</dt><dd>", results->text, results->skip, results->target, results->threads);
    fprintf(out, "%llu</dd>\n</dl>\n", (unsigned long long)results->seed);
    for (int key = 0; key <= results->num_caches; key++) write_cache_config(out, results, key);
}

// Returns false when memory runs out; errors of the file stay in the file.
static bool write_page(FILE* out, const eval_results* results)
{
    point* points = calloc((size_t)results->num_caches + 1, sizeof *points);
    if (points == NULL) return false;
    const int count = collect_points(results, points);
    write_head(out, results);
    bool ok = write_table(out, results, points, count) &&
              write_cost(out, results, points, count);
    if (ok) write_speeds(out, results, points, count);
    ok = ok && write_positions(out, results, points, count);
    if (ok) {
        write_maps(out, results, points, count);
        write_needles(out, results, points, count);
    }
    ok = ok && write_generations(out, results, points, count);
    if (ok) {
        write_worsts(out, results, points, count);
        write_config(out, results);
        fputs("<script>\n", out);
        put_lines(out, script);
        fputs("</script>\n</body>\n</html>\n", out);
    }
    free(points);
    return ok;
}

// FILE

static int fail(char* message, size_t message_bytes, const char* path, const char* rule, int error)
{
    snprintf(message, message_bytes, "%s: %s: %s", path, rule, strerror(error));
    return -1;
}

int eval_html_write(const eval_results* results, const char* path, char* message,
                    size_t message_bytes)
{
    message[0] = '\0';
    struct stat about;
    // A device or a pipe is written to; a file beside it could not take its place.
    const bool direct = stat(path, &about) == 0 && !S_ISREG(about.st_mode) &&
                        !S_ISDIR(about.st_mode);
    const size_t room = strlen(path) + 32;
    char* name = malloc(room);
    if (name == NULL) return fail(message, message_bytes, path, "the report", ENOMEM);
    if (direct) snprintf(name, room, "%s", path);
    else snprintf(name, room, "%s.%ld.tmp", path, (long)getpid());
    const int flags = O_WRONLY | O_CLOEXEC | (direct ? 0 : O_CREAT | O_TRUNC | O_NOFOLLOW);
    const int fd = open(name, flags, 0666);
    FILE* out = fd >= 0 ? fdopen(fd, "w") : NULL;
    if (out == NULL) {
        const int error = errno;
        if (fd >= 0) close(fd);
        free(name);
        return fail(message, message_bytes, path, "cannot be written", error);
    }
    errno = 0;
    int error = write_page(out, results) ? 0 : ENOMEM;
    if (fflush(out) != 0 && error == 0) error = errno;
    if (ferror(out) && error == 0) error = errno != 0 ? errno : EIO;
    if (fclose(out) != 0 && error == 0) error = errno;
    if (error == 0 && !direct && rename(name, path) != 0) error = errno;
    if (error != 0 && !direct) unlink(name);
    free(name);
    return error == 0 ? 0 : fail(message, message_bytes, path, "cannot be written", error);
}
