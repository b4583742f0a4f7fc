// calibrate_side.c -- the words of a side's text.

#include "calibrate_side.h"

#include <stdlib.h>
#include <string.h>

size_t calibrate_word_at(const char** text)
{
    while (**text == ',') ++*text;
    return strcspn(*text, ",");
}

int calibrate_has_word(const char* side, const char* word)
{
    for (size_t n; (n = calibrate_word_at(&side)) > 0; side += n)
        if (n == strlen(word) && strncmp(side, word, n) == 0) return 1;
    return 0;
}

int calibrate_number_of(const char* side, const char* name)
{
    const size_t length = strlen(name);
    for (size_t n; (n = calibrate_word_at(&side)) > 0; side += n)
        if (n > length && strncmp(side, name, length) == 0 && side[length] >= '0' &&
            side[length] <= '9')
            return atoi(side + length);
    return 0;
}
