// number.c -- formats of numbers: literals of PTX, packing with any rounding, exact unpacking.

#include "sim.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

const format format_f16 = { 5, 10, false };
const format format_bf16 = { 8, 7, false };
const format format_f32 = { 8, 23, false };
const format format_f64 = { 11, 52, false };
const format format_e4m3 = { 4, 3, true };
const format format_e5m2 = { 5, 2, false };

// A literal: decimal, 0x, 0b, octal, with U; 0f and 0d with hexadecimal digits; decimal fractions.
bool parse_number(const char* text, type as, uint64_t* value)
{
    char* end;
    const bool minus = *text == '-';
    if (minus || *text == '+') ++text;
    if (*text < '0' || *text > '9') return false;
    if (text[0] == '0' && (text[1] == 'f' || text[1] == 'F') && strlen(text) == 10) {
        const uint32_t bits = (uint32_t)strtoul(text + 2, &end, 16) ^ (minus ? 0x80000000u : 0);
        *value = as == T_F64 ? bits_of_double((double)float_of_bits(bits)) : bits;
        return !*end;
    }
    if (text[0] == '0' && (text[1] == 'd' || text[1] == 'D') && strlen(text) == 18) {
        const uint64_t bits = strtoull(text + 2, &end, 16) ^ (minus ? (uint64_t)1 << 63 : 0);
        *value = as == T_F32 ? bits_of_float((float)double_of_bits(bits)) : bits;
        return !*end;
    }
    if (as == T_F32 || as == T_F64 || (strchr(text, '.') && !strchr(text, 'x'))) {
        const double x = strtod(text, &end) * (minus ? -1 : 1);
        *value = as == T_F32 ? bits_of_float((float)x) : bits_of_double(x);
        return !*end;
    }
    if (text[0] == '0' && (text[1] == 'b' || text[1] == 'B')) {
        *value = strtoull(text + 2, &end, 2);
    } else {
        *value = strtoull(text, &end, 0);
    }
    if (*end == 'U' || *end == 'u') ++end;
    if (minus) *value = 0 - *value;
    return !*end;
}

// Whether the remainder moves the magnitude up by one.
static bool goes_up(rounding round, bool negative, bool odd, int half_and_rest)
{
    // half_and_rest: 0 exact, 1 below a half, 2 a half, 3 above.
    if (!half_and_rest) return false;
    switch (round) {
    case ROUND_NEAREST: return half_and_rest == 3 || (half_and_rest == 2 && odd);
    case ROUND_AWAY: return half_and_rest >= 2;
    case ROUND_DOWN: return negative;
    case ROUND_UP: return !negative;
    case ROUND_ZERO: break;
    }
    return false;
}

static uint64_t largest_finite(const format* to)
{
    const uint64_t ones = ((uint64_t)1 << (to->exponent_bits + to->fraction_bits)) - 1;
    // e4m3 keeps one code of the last binade for NaN.
    return to->no_infinity ? ones - 1 : ones - ((uint64_t)1 << to->fraction_bits);
}

static uint64_t overflowed(const format* to, bool negative, rounding round, bool to_finite)
{
    const uint64_t finite = largest_finite(to);
    const bool stays = to_finite || round == ROUND_ZERO || (round == ROUND_DOWN && !negative) ||
                       (round == ROUND_UP && negative);
    return stays ? finite : finite + 1;
}

uint64_t pack_number(const format* to, bool negative, uint64_t fraction, int exponent, bool inexact,
                     rounding round, bool to_finite)
{
    const uint64_t sign = (uint64_t)negative << (to->exponent_bits + to->fraction_bits);
    if (!fraction && !inexact) return sign;
    const int bias = (1 << (to->exponent_bits - 1)) - 1, lowest = 1 - bias - to->fraction_bits;
    int top = 63;
    while (top > 0 && !(fraction >> top)) --top;
    // The exponent of the unit in the last place.
    int unit = exponent + top - to->fraction_bits;
    if (unit < lowest) unit = lowest;
    const int shift = unit - exponent;
    uint64_t kept = fraction;
    int rest = inexact ? 1 : 0;
    if (shift > 64) {
        kept = 0, rest = 1;
    } else if (shift > 0) {
        kept = shift == 64 ? 0 : fraction >> shift;
        const uint64_t half = (uint64_t)1 << (shift - 1);
        const uint64_t below = fraction & (half - 1);
        rest = (fraction & half ? 2 : 0) + (below || inexact ? 1 : 0);
    } else {
        kept = fraction << -shift;
    }
    if (goes_up(round, negative, kept & 1, rest)) ++kept;
    if (kept >> (to->fraction_bits + 1)) kept >>= 1, ++unit;
    // A kept value without the leading bit is subnormal: its exponent field is 0.
    const uint64_t biased = kept >> to->fraction_bits ? (uint64_t)(unit - lowest + 1) : 0;
    const uint64_t bits = (biased << to->fraction_bits) |
                          (kept & (((uint64_t)1 << to->fraction_bits) - 1));
    if (unit - lowest + 1 >= 1 << to->exponent_bits || bits > largest_finite(to)) {
        return sign | overflowed(to, negative, round, to_finite);
    }
    return sign | bits;
}

// NaN becomes the format's positive NaN with all fraction bits set.
uint64_t pack_double(const format* to, double x, rounding round, bool to_finite)
{
    const uint64_t bits = bits_of_double(x);
    const bool negative = bits >> 63;
    const int exponent = (int)(bits >> 52 & 0x7ff);
    const uint64_t fraction = bits & (((uint64_t)1 << 52) - 1);
    const uint64_t sign = (uint64_t)negative << (to->exponent_bits + to->fraction_bits);
    if (x != x) return ((uint64_t)1 << (to->exponent_bits + to->fraction_bits)) - 1;
    if (exponent == 0x7ff) return sign | (largest_finite(to) + (to_finite ? 0 : 1));
    if (exponent == 0) return pack_number(to, negative, fraction, -1074, false, round, to_finite);
    return pack_number(to, negative, fraction | (uint64_t)1 << 52, exponent - 1075, false, round,
                       to_finite);
}

double unpack_double(const format* from, uint64_t bits)
{
    const int width = from->exponent_bits + from->fraction_bits;
    const bool negative = bits >> width & 1;
    const int exponent = (int)(bits >> from->fraction_bits) & ((1 << from->exponent_bits) - 1);
    const uint64_t fraction = bits & (((uint64_t)1 << from->fraction_bits) - 1);
    const int bias = (1 << (from->exponent_bits - 1)) - 1;
    double x;
    const bool last = exponent == (1 << from->exponent_bits) - 1;
    const uint64_t magnitude = bits & (((uint64_t)1 << width) - 1);
    if (from->no_infinity ? magnitude == largest_finite(from) + 1 : last) {
        x = from->no_infinity || fraction ? (double)NAN : (double)INFINITY;
    } else if (exponent == 0) {
        x = ldexp((double)fraction, 1 - bias - from->fraction_bits);
    } else {
        x = ldexp((double)(fraction | (uint64_t)1 << from->fraction_bits),
                  exponent - bias - from->fraction_bits);
    }
    return negative ? -x : x;
}

// The normal values go by integers: a carry out of the fraction moves the exponent.
uint32_t float_to_f16(double x)
{
    const uint64_t bits = bits_of_double(x), size = bits & UINT64_MAX >> 1;
    if (x - x == 0 && size >= bits_of_double(0x1p-14) && size < bits_of_double(65520.0)) {
        const uint64_t rounded = size + (((uint64_t)1 << 41) - 1) + (size >> 42 & 1);
        return (uint32_t)(bits >> 48 & 0x8000u) | (uint32_t)((rounded >> 42) - (1008u << 10));
    }
    return (uint32_t)pack_double(&format_f16, x, ROUND_NEAREST, false);
}

uint32_t float_to_bf16(double x)
{
    const uint64_t bits = bits_of_double(x), size = bits & UINT64_MAX >> 1;
    if (x - x == 0 && size >= bits_of_double(0x1p-126) && size < bits_of_double(0x1.ffp127)) {
        const uint64_t rounded = size + (((uint64_t)1 << 44) - 1) + (size >> 45 & 1);
        return (uint32_t)(bits >> 48 & 0x8000u) | (uint32_t)((rounded >> 45) - (896u << 7));
    }
    return (uint32_t)pack_double(&format_bf16, x, ROUND_NEAREST, false);
}

// x + y rounded to odd: rounding the result again to a format of at most 50 bits is rounding once.
double add_to_odd(double x, double y)
{
    const double sum = x + y;
    if (sum - sum != 0) return sum;
    const double back = sum - x;
    const double error = (x - (sum - back)) + (y - back);
    if (error == 0 || (bits_of_double(sum) & 1)) return sum;
    // The exact sum lies beyond `sum` in the direction of the error.
    const bool away = (error > 0) == (sum > 0);
    return double_of_bits(bits_of_double(sum) + (away ? 1 : (uint64_t)-1));
}
