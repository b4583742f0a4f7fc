// saved_session.h -- a session in a file: what was run, and what has to be known to go on.
//
// The file is kvl_save's. Rows alone do not make a conversation: beside the token ids it has, as
// the engine's data, the model's identity, the logits of the last row, and the turns of a chat.

#ifndef KVLOOM_DECODE_SAVED_SESSION_H
#define KVLOOM_DECODE_SAVED_SESSION_H

#include "conversation.h"
#include "model.h"

typedef struct saved_session {
    int32_t* ids;        // [num_ids] a row each
    int64_t num_ids;
    float* logits;       // [vocab_size] after the last row; NULL: not known
    const conversation* talk;  // NULL: not a chat
} saved_session;

// Writes the session's sequence; `path` is whole or as it was. Everything is borrowed. Returns 0,
// or another value with one line in message.
int saved_session_write(const char* path, model_session* s, const saved_session* saved,
                        char* message, size_t message_bytes);

// Reads what a file has beside rows, and checks that it belongs to the session's model. ids, logits
// (room for vocab_size must be there; *has_logits) and the turns of an empty talk are filled.
typedef struct saved_session_reading {
    int32_t* ids;        // to be freed by the caller
    int64_t num_ids;
    float* logits;       // [vocab_size], the caller's
    bool has_logits;
    conversation* talk;  // the caller's; its chat template stays
    bool is_chat;
} saved_session_reading;

int saved_session_read(const char* path, model_session* s, saved_session_reading* out,
                       char* message, size_t message_bytes);

// Takes the file's rows in the place of the session's. recode: those of another cache spec as well,
// by way of full rows.
int saved_session_take_rows(const char* path, model_session* s, bool recode, char* message,
                            size_t message_bytes);

// Whether a session can be written to path: to be asked before the work that it is to hold.
// Returns 0, or another value with one line in message.
int saved_session_check_path(const char* path, char* message, size_t message_bytes);

#endif
