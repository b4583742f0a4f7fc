// chat.c -- renders a conversation as the text that a model was trained on.

#include "chat.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char* const family_names[] = { "plain", "ChatML", "Llama 3", "Gemma", "Mistral" };

// A string that grows. After a failed allocation `failed` stays set and appends do nothing.
typedef struct text_buffer {
    char* data;
    size_t bytes;
    size_t capacity;
    bool failed;
} text_buffer;

static void append(text_buffer* out, const char* data, size_t bytes)
{
    if (out->failed) { return; }
    if (bytes >= SIZE_MAX / 2 - out->bytes) {
        out->failed = true;
        return;
    }
    if (out->bytes + bytes + 1 > out->capacity) {
        const size_t capacity = 2 * (out->bytes + bytes) + 64;
        char* const larger = realloc(out->data, capacity);
        if (!larger) {
            out->failed = true;
            return;
        }
        out->data = larger;
        out->capacity = capacity;
    }
    memcpy(out->data + out->bytes, data, bytes);
    out->bytes += bytes;
    out->data[out->bytes] = 0;
}

static void append_text(text_buffer* out, const char* text) { append(out, text, strlen(text)); }

static bool is_space(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }

static void append_trimmed(text_buffer* out, const char* text)
{
    size_t bytes = strlen(text);
    while (bytes > 0 && is_space(text[bytes - 1])) { bytes--; }
    for (; bytes > 0 && is_space(*text); bytes--) { text++; }
    append(out, text, bytes);
}

static const char* find(gguf_string text, size_t from, const char* wanted)
{
    const size_t bytes = strlen(wanted);
    for (size_t i = from; i + bytes <= text.bytes; i++) {
        if (memcmp(text.data + i, wanted, bytes) == 0) { return text.data + i; }
    }
    return NULL;
}

static bool contains(gguf_string text, const char* wanted) { return find(text, 0, wanted) != NULL; }

// ---- detection ----

// Bytes of a line end in a Jinja literal at the text's beginning: a real one or an escape; else 0.
static size_t line_end(const char* data, size_t bytes)
{
    if (bytes >= 1 && data[0] == '\n') { return 1; }
    return bytes >= 2 && data[0] == '\\' && data[1] == 'n' ? 2 : 0;
}

// The system message that a ChatML template holds as one literal, from its first letter to its end
// token. A quote in between means that the literal ends and an expression follows.
static gguf_string find_default_system(gguf_string text)
{
    static const char begin[] = "<|im_start|>system";
    const gguf_string nothing = { "", 0 };
    const char* at = find(text, 0, begin);
    while (at) {
        const size_t head = (size_t)(at - text.data) + sizeof begin - 1;
        const size_t start = head + line_end(text.data + head, text.bytes - head);
        const char* const end = find(text, start, "<|im_end|>");
        if (start > head && end) {
            gguf_string system = { text.data + start, (size_t)(end - text.data) - start };
            size_t i = 0;
            while (i < system.bytes && system.data[i] != '\'' && system.data[i] != '"') {
                i += system.data[i] == '\\' ? 2 : 1;
            }
            if (i >= system.bytes) { return system; }
        }
        at = find(text, head, begin);
    }
    return nothing;
}

static bool recognise(gguf_string text, chat_template* out)
{
    if (contains(text, "<|im_start|>")) {
        out->family = CHAT_CHATML;
        out->default_system = find_default_system(text);
    } else if (contains(text, "<|start_header_id|>") && contains(text, "<|eot_id|>")) {
        out->family = CHAT_LLAMA3;
    } else if (contains(text, "<start_of_turn>")) {
        out->family = CHAT_GEMMA;
    } else if (contains(text, "[INST]") && !contains(text, "<<SYS>>") &&
               !contains(text, "[SYSTEM_PROMPT]")) {
        // As seen: " [INST] x [/INST] y", "[INST] x [/INST]y", "[INST] x[/INST] y",
        // "[INST]x[/INST]y".
        out->family = CHAT_MISTRAL;
        out->blank_open[0] = contains(text, " [INST]");
        out->blank_open[1] = contains(text, "[INST] ");
        out->blank_close[0] = contains(text, " [/INST]");
        out->blank_close[1] = contains(text, "[/INST] ") || contains(text, "' ' + message") ||
                              contains(text, "\" \" + message");
        out->trims_answers = contains(text, "trim");
    } else {
        return false;
    }
    return true;
}

int chat_detect(const gguf* file, chat_template* out, char* message, size_t message_bytes)
{
    static const char key[] = "tokenizer.chat_template";
    gguf_string text = { "", 0 };
    memset(out, 0, sizeof *out);
    out->default_system.data = "";
    const int status = gguf_get_string(file, key, &text);
    if (status == GGUF_ABSENT) { return 0; }
    if (status != GGUF_OK) {
        gguf_explain(file, key, status, "a string", message, message_bytes);
        return 1;
    }
    if (recognise(text, out)) { return 0; }
    if (message_bytes > 0) {
        snprintf(message, message_bytes,
                 "%s: %s: of an unknown family: must be one of ChatML, Llama 3, Gemma, "
                 "Mistral [INST], or absent (plain text)",
                 gguf_path(file), key);
    }
    return 1;
}

const char* chat_family_name(chat_family family)
{
    const size_t index = (size_t)family;
    return index < sizeof family_names / sizeof family_names[0] ? family_names[index] : "unknown";
}

// ---- families ----

static bool is_role(const chat_message* message, const char* role)
{
    return strcmp(message->role, role) == 0;
}

static void append_unescaped(text_buffer* out, gguf_string text)
{
    for (size_t i = 0; i < text.bytes; i++) {
        char c = text.data[i];
        if (c == '\\' && i + 1 < text.bytes) {
            c = text.data[++i];
            c = c == 'n' ? '\n' : c == 't' ? '\t' : c;
        }
        append(out, &c, 1);
    }
}

static void render_chatml(text_buffer* out, const chat_template* chat, const chat_message* messages,
                          size_t count, bool prompt)
{
    if (chat->default_system.bytes > 0 && count > 0 && !is_role(&messages[0], "system")) {
        append_text(out, "<|im_start|>system\n");
        append_unescaped(out, chat->default_system);
        append_text(out, "<|im_end|>\n");
    }
    for (size_t i = 0; i < count; i++) {
        append_text(out, "<|im_start|>");
        append_text(out, messages[i].role);
        append_text(out, "\n");
        append_text(out, messages[i].text);
        append_text(out, "<|im_end|>\n");
    }
    if (prompt) { append_text(out, "<|im_start|>assistant\n"); }
}

static void render_llama3(text_buffer* out, const chat_message* messages, size_t count, bool prompt)
{
    for (size_t i = 0; i < count; i++) {
        append_text(out, "<|start_header_id|>");
        append_text(out, messages[i].role);
        append_text(out, "<|end_header_id|>\n\n");
        append_trimmed(out, messages[i].text);
        append_text(out, "<|eot_id|>");
    }
    if (prompt) { append_text(out, "<|start_header_id|>assistant<|end_header_id|>\n\n"); }
}

// Gemma has no system turn: the system text opens the user turn after it.
static void render_gemma(text_buffer* out, const chat_message* messages, size_t count, bool prompt)
{
    bool is_open = false;
    for (size_t i = 0; i < count; i++) {
        const bool is_system = is_role(&messages[i], "system");
        const bool is_model = is_role(&messages[i], "assistant");
        if (!is_open || is_model) {
            append_text(out, is_open ? "<end_of_turn>\n" : "");
            append_text(out, is_model ? "<start_of_turn>model\n" : "<start_of_turn>user\n");
        }
        append_trimmed(out, messages[i].text);
        append_text(out, is_system ? "\n\n" : "<end_of_turn>\n");
        is_open = is_system;
    }
    if (is_open) { append_text(out, "<end_of_turn>\n"); }
    if (prompt) { append_text(out, "<start_of_turn>model\n"); }
}

static void append_bracket(text_buffer* out, const char* bracket, const bool blank[2])
{
    append_text(out, blank[0] ? " " : "");
    append_text(out, bracket);
    append_text(out, blank[1] ? " " : "");
}

static void render_mistral(text_buffer* out, const chat_template* chat,
                           const chat_message* messages, size_t count)
{
    bool is_open = false;
    for (size_t i = 0; i < count; i++) {
        if (is_role(&messages[i], "assistant")) {
            (chat->trims_answers ? append_trimmed : append_text)(out, messages[i].text);
            append_text(out, "</s>");
            is_open = false;
            continue;
        }
        if (!is_open) { append_bracket(out, "[INST]", chat->blank_open); }
        is_open = is_role(&messages[i], "system");
        append_text(out, messages[i].text);
        if (is_open) {
            append_text(out, "\n\n");
            continue;
        }
        // The blank behind the bracket belongs to the answer: the model writes it itself.
        const bool is_last = i + 1 == count;
        const bool blank[2] = { chat->blank_close[0], chat->blank_close[1] && !is_last };
        append_bracket(out, "[/INST]", blank);
    }
}

static void render_plain(text_buffer* out, const chat_message* messages, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        append_text(out, i > 0 ? "\n" : "");
        append_text(out, messages[i].text);
    }
}

static int refuse_role(const chat_message* message, size_t index, char* text, size_t text_bytes)
{
    if (text_bytes > 0) {
        snprintf(text, text_bytes, "message %lu: role = %.40s: must be system, user or assistant",
                 (unsigned long)index, message->role);
    }
    return 1;
}

int chat_render(const chat_template* chat, const chat_message* messages, size_t num_messages,
                bool add_generation_prompt, char** out, char* message, size_t message_bytes)
{
    text_buffer text = { NULL, 0, 0, false };
    *out = NULL;
    for (size_t i = 0; i < num_messages; i++) {
        if (!is_role(&messages[i], "system") && !is_role(&messages[i], "user") &&
            !is_role(&messages[i], "assistant")) {
            return refuse_role(&messages[i], i, message, message_bytes);
        }
    }
    append_text(&text, "");
    switch (chat->family) {
    case CHAT_CHATML:
        render_chatml(&text, chat, messages, num_messages, add_generation_prompt);
        break;
    case CHAT_LLAMA3: render_llama3(&text, messages, num_messages, add_generation_prompt); break;
    case CHAT_GEMMA: render_gemma(&text, messages, num_messages, add_generation_prompt); break;
    case CHAT_MISTRAL: render_mistral(&text, chat, messages, num_messages); break;
    case CHAT_PLAIN: render_plain(&text, messages, num_messages); break;
    }
    if (text.failed) {
        free(text.data);
        if (message_bytes > 0) { snprintf(message, message_bytes, "chat: no memory"); }
        return 1;
    }
    *out = text.data;
    return 0;
}
