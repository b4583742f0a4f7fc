// conversation.c -- turns of a chat, and the text that each adds to what a session has run.
//
// The whole conversation is rendered at each turn. Usually it begins with the text that has been
// run, and the rest is what is missing; where a template changes earlier answers (trims them), it
// does not, and everything has to be run afresh.

#include "conversation.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool conversation_add(conversation* c, const char* role, const char* text, size_t bytes)
{
    chat_message* more = realloc(c->messages, (c->num_messages + 1) * sizeof *more);
    char* copy = malloc(bytes + 1);
    if (more != NULL) { c->messages = more; }
    if (more == NULL || copy == NULL) {
        free(copy);
        return false;
    }
    if (bytes > 0) { memcpy(copy, text, bytes); }
    copy[bytes] = 0;
    c->messages[c->num_messages++] = (chat_message){ role, copy };
    return true;
}

int conversation_ask(conversation* c, const char* question, char** text, bool* restart,
                     char* message, size_t message_bytes)
{
    char* whole = NULL;
    *text = NULL;
    if (!conversation_add(c, "user", question, strlen(question))) {
        snprintf(message, message_bytes, "out of memory");
        return 1;
    }
    if (chat_render(&c->chat, c->messages, c->num_messages, true, &whole, message,
                    message_bytes) != 0) {
        return 1;
    }
    *restart = c->run.count > 0 && strncmp(whole, c->run.data, c->run.count) != 0;
    const size_t skipped = *restart ? 0 : c->run.count;
    if (*restart) { text_bytes_free(&c->run); }
    *text = strdup(whole + skipped);
    const bool ok = *text != NULL && text_bytes_add(&c->run, *text, strlen(*text));
    free(whole);
    if (!ok) {
        free(*text);
        *text = NULL;
        snprintf(message, message_bytes, "out of memory");
        return 1;
    }
    return 0;
}

// Text more of the last message.
static bool lengthen_message(conversation* c, const text_bytes* more)
{
    chat_message* last = &c->messages[c->num_messages - 1];
    const size_t bytes = strlen(last->text);
    char* text = malloc(bytes + more->count + 1);
    if (text == NULL) { return false; }
    memcpy(text, last->text, bytes);
    if (more->count > 0) { memcpy(text + bytes, more->data, more->count); }
    text[bytes + more->count] = 0;
    free((char*)(uintptr_t)last->text);
    last->text = text;
    return true;
}

bool conversation_answer(conversation* c, const text_bytes* answer)
{
    const bool goes_on =
        c->num_messages > 0 && strcmp(c->messages[c->num_messages - 1].role, "assistant") == 0;
    return (goes_on ? lengthen_message(c, answer)
                    : conversation_add(c, "assistant", answer->data, answer->count)) &&
           text_bytes_add(&c->run, answer->data, answer->count);
}

void conversation_free(conversation* c)
{
    for (size_t i = 0; i < c->num_messages; i++) {
        free((char*)(uintptr_t)c->messages[i].text);  // const in the renderer's interface
    }
    free(c->messages);
    text_bytes_free(&c->run);
    c->messages = NULL;
    c->num_messages = 0;
}
