// conversation.h -- turns of a chat, and the text that each adds to what a session has run.

#ifndef KVLOOM_DECODE_CONVERSATION_H
#define KVLOOM_DECODE_CONVERSATION_H

#include <stdbool.h>
#include <stddef.h>

#include "chat.h"
#include "text_stream.h"

typedef struct conversation {
    chat_template chat;
    chat_message* messages;  // [num_messages]; texts are owned
    size_t num_messages;
    text_bytes run;          // the text that the session has run, answers included
} conversation;

// Adds the user's message. *text is what the session has to run: from its start on if *restart,
// else after what it has run. Returns 0 and a string that the caller frees, or another value with
// one line in message.
int conversation_ask(conversation* c, const char* question, char** text, bool* restart,
                     char* message, size_t message_bytes);

// Adds a message of an earlier conversation; role is borrowed, text is copied. Returns false when
// memory is out.
bool conversation_add(conversation* c, const char* role, const char* text, size_t bytes);

// Adds the model's answer, as far as it went; after an answer, what it goes on with. Returns false
// when memory is out.
bool conversation_answer(conversation* c, const text_bytes* answer);

void conversation_free(conversation* c);

#endif
