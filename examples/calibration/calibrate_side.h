// calibrate_side.h -- the words of a side's text, as derivations get it: "b2,g32,clip96".

#ifndef KVLOOM_CALIBRATE_SIDE_H
#define KVLOOM_CALIBRATE_SIDE_H

#include <stddef.h>

// The next word of a text that commas separate: *text is moved to it. Returns its length, 0 at the
// end.
size_t calibrate_word_at(const char** text);

// Whether the side has a word; and the number behind a name, 0 where no word is the name and a
// number.
int calibrate_has_word(const char* side, const char* word);
int calibrate_number_of(const char* side, const char* name);

#endif
