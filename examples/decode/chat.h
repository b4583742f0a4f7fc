// chat.h -- renders a conversation as the text that a model was trained on.
//
// The template in the file is a Jinja program; it is not run. Its control tokens tell the family,
// and the family is rendered here. A template of another family is refused. Begin-of-text tokens
// are not rendered: tokenizer_encode adds them. Encode the result with TOKENIZER_PARSE_SPECIAL;
// control tokens that stand in a message's text are then parsed as well.

#ifndef KVLOOM_DECODE_CHAT_H
#define KVLOOM_DECODE_CHAT_H

#include <stdbool.h>
#include <stddef.h>

#include "gguf.h"

typedef enum chat_family {
    CHAT_PLAIN = 0, // no template in the file: texts, one a line
    CHAT_CHATML,
    CHAT_LLAMA3,
    CHAT_GEMMA,
    CHAT_MISTRAL
} chat_family;

// A value: copy it freely. It borrows the file's strings.
typedef struct chat_template {
    chat_family family;
    gguf_string default_system; // ChatML: what the model takes when the first message is not
                                // "system"; still with the escapes of Jinja. Empty if none.
    bool blank_open[2];         // Mistral: blanks before and after [INST] ...
    bool blank_close[2];        // ... and [/INST], which differ by version
    bool trims_answers;
} chat_template;

typedef struct chat_message {
    const char* role; // "system", "user" or "assistant"
    const char* text;
} chat_message;

// Returns 0, or another value with one line in message that names the recognised families.
int chat_detect(const gguf* file, chat_template* out, char* message, size_t message_bytes);
const char* chat_family_name(chat_family family);

// add_generation_prompt ends the text where the assistant's answer begins. Returns 0 and a
// terminated string that the caller frees, or another value with one line in message.
int chat_render(const chat_template* chat, const chat_message* messages, size_t num_messages,
                bool add_generation_prompt, char** out, char* message, size_t message_bytes);

#endif
