/* The C interface of libmillrace: one model in this process, asked by any number of threads.
 *
 *   millrace_engine_create   loads a model directory and starts the engine's threads
 *   millrace_submit          begins to answer a prompt; many requests share the engine's steps
 *   millrace_next_event      brings the answer, step by step
 *   millrace_request_destroy, millrace_engine_destroy
 *
 * C99 and C++. docs/library.md has the ideas and whole examples; this file is the reference.
 *
 * Errors.   Every function that can fail returns a millrace_status; below 0 it is an error, and
 *           millrace_last_error() says what was found and what was expected. Null pointers, wrong
 *           sizes, handles of the wrong kind and values without sense are refused, never
 *           dereferenced or guessed. No exception leaves the library.
 * Structs.  Begin with struct_size and are filled by their init function, which gets sizeof of
 *           what the caller was compiled with:
 *             millrace_event event;
 *             millrace_event_init(&event, sizeof event);
 *           Fields are only ever added at the end, so that a program works with a newer library.
 *           With an older library it works, too, as long as the fields that the library does not
 *           know are zero; otherwise they are refused. Structs without struct_size never change.
 * Text.     UTF-8 with a size, so that it may hold any byte. Text from the library also ends with
 *           a zero byte that does not count.
 * Memory.   What is passed in is copied before the function returns. What comes out belongs to the
 *           handle it came from, and its comment says how long it is valid.
 * Handles.  Are destroyed by their destroy function, in any order: a request keeps its engine
 *           alive, whose threads end with the last of them. Destroying NULL does nothing. Using a
 *           handle after its destruction, or while another thread destroys it, is undefined.
 * Threads.  An engine may be used by any number of threads at once. A request has one reader at a
 *           time (a second one is refused); millrace_cancel may be called from any thread. Loading
 *           the library starts no thread and prints nothing.
 * fork().   Handles belong to the process that created them. In a child everything but destroying
 *           them is refused (MILLRACE_UNAVAILABLE); destroying frees nothing there. A child may
 *           create engines of its own.
 * Floating  The library computes in round-to-nearest with denormals whatever the calling thread
 * point.    has set, and restores the thread's control register (MXCSR, FPCR) on return. Callbacks
 *           run in the library's state.
 */
#ifndef MILLRACE_H_
#define MILLRACE_H_

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if defined(__GNUC__)
#define MILLRACE_API __attribute__((visibility("default")))
#else
#define MILLRACE_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Status and errors. */

typedef int32_t millrace_status;
enum {
  MILLRACE_OK = 0,
  MILLRACE_TIMED_OUT = 1, /* millrace_next_event: nothing came in time */
  MILLRACE_END = 2,       /* millrace_next_event: nothing more will come */

  MILLRACE_INVALID_ARGUMENT = -1, /* the caller asked for something that makes no sense */
  MILLRACE_NOT_FOUND = -2,        /* a named thing does not exist */
  MILLRACE_CORRUPT = -3,          /* a file contradicts itself or its format */
  MILLRACE_EXHAUSTED = -4,        /* a limit or a capacity was reached */
  MILLRACE_UNAVAILABLE = -5,      /* no more memory or threads; or the wrong process */
  MILLRACE_CANCELLED = -6,        /* the caller gave up */
  MILLRACE_INTERNAL = -7          /* a mistake of the library */
};

/* Of the last call on this thread that returned an error; "" before the first. Valid until the next
 * one does. */
MILLRACE_API const char* millrace_last_error(void);

/* "invalid argument", ...; "unknown status" for other numbers. Static. */
MILLRACE_API const char* millrace_status_name(millrace_status status);

/* "0.1.0". Static. Two computers give the same answers if their engines' numerics ids are equal
 * (millrace_engine_info), whatever the version. */
MILLRACE_API const char* millrace_version(void);

/* ---- Lists and text. */

typedef struct millrace_text {
  const char* data; /* NULL: absent, which is not the same as empty */
  size_t size;      /* bytes */
} millrace_text;

typedef struct millrace_token_ids {
  const int32_t* data; /* may be NULL if size is 0 */
  size_t size;
} millrace_token_ids;

/* A C string as text; NULL is absent. */
static inline millrace_text millrace_string(const char* string) {
  millrace_text text;
  text.data = string;
  text.size = string == NULL ? 0 : strlen(string);
  return text;
}

/* ---- Engines. */

typedef struct millrace_engine millrace_engine;

enum {
  MILLRACE_NUMERICS_REFERENCE = 0, /* bf16 between operations, as the published inference */
  MILLRACE_NUMERICS_FP32 = 1       /* for comparing mathematics: nothing is rounded to less */
};

typedef struct millrace_engine_options {
  uint32_t struct_size;
  int32_t numerics;               /* MILLRACE_NUMERICS_... */
  const char* model_dir;          /* required: a checkpoint's directory */
  const char* isa;                /* a kernel table by name; NULL: the best one here */
  int32_t num_threads;            /* 0: one for each core that the process may use */
  int32_t reserved;               /* 0 */
  int64_t prefill_chunk;          /* 256: tokens of one prompt that are computed at once */
  int64_t max_model_len;          /* tokens of prompt and output; 0: as many as memory has room for */
  int64_t max_num_seqs;           /* 256: sequences that hold state at a time */
  int64_t max_num_batched_tokens; /* 2048: tokens of a step */
  int64_t max_waiting;            /* 1024: requests beyond those that run */
  int64_t kv_bytes;               /* for the cache; 0: what memory leaves */
  double max_step_ms;             /* 250: length of a step while anything is decoded */
  /* Called by millrace_engine_create, on its thread, after each file that was opened. */
  void (*on_progress)(void* user_data, int64_t num_files_done, int64_t num_files);
  void* progress_data;
  /* Memory for routed experts that are read from the disk when they are needed; 0: they are mapped;
     -1: mapped if they fit into memory, or else what memory leaves. */
  int64_t expert_cache_bytes;
} millrace_engine_options;

MILLRACE_API millrace_status millrace_engine_options_init(millrace_engine_options* options,
                                                          size_t struct_size);

/* On error *engine is NULL. */
MILLRACE_API millrace_status millrace_engine_create(const millrace_engine_options* options,
                                                    millrace_engine** engine);
MILLRACE_API millrace_status millrace_engine_destroy(millrace_engine* engine);

typedef struct millrace_engine_info {
  uint32_t struct_size;
  int32_t num_threads;
  millrace_text numerics_id; /* both valid as long as the engine */
  millrace_text isa;
  int64_t vocab_size;        /* token ids are below it */
  int64_t max_model_len;     /* the length that fits */
  int64_t max_num_seqs;      /* as many as memory has room for */
  int64_t kv_bytes;          /* reserved for the cache; memory is used as it fills */
  int64_t mapped_bytes;      /* checkpoint files, read as they are needed */
  int64_t copied_bytes;      /* of them, those that had to be copied to memory */
  int32_t bos_token_id;      /* -1: the tokenizer has none */
  int32_t reserved;
} millrace_engine_info;

MILLRACE_API millrace_status millrace_engine_info_init(millrace_engine_info* info,
                                                       size_t struct_size);
MILLRACE_API millrace_status millrace_get_engine_info(const millrace_engine* engine,
                                                      millrace_engine_info* info);

/* ---- Text and tokens.
 *
 * Results go to the caller's buffer of `capacity` elements, and their number to *size. If they do
 * not fit, as many as fit are written, *size is the number needed, and the status is
 * MILLRACE_EXHAUSTED. A buffer of NULL with capacity 0 asks for the number. */

enum {
  /* The text starts with the begin token, once. */
  MILLRACE_ADD_BOS = 1,
  /* Literals such as <|User|> become control tokens. Only for text that its author may use to
   * steer the model; without it no text does. */
  MILLRACE_TRUSTED_TEXT = 2
};

/* Never more tokens than bytes, plus one with MILLRACE_ADD_BOS. */
MILLRACE_API millrace_status millrace_tokenize(const millrace_engine* engine, millrace_text text,
                                               uint32_t flags, int32_t* ids, size_t capacity,
                                               size_t* size);

enum { MILLRACE_SKIP_SPECIAL_TOKENS = 1 }; /* control tokens leave no text */

/* Ill-formed UTF-8 becomes U+FFFD. No zero byte is added. */
MILLRACE_API millrace_status millrace_detokenize(const millrace_engine* engine,
                                                 millrace_token_ids ids, uint32_t flags,
                                                 char* text, size_t capacity, size_t* size);

/* The bytes of one token, which need not be whole characters; empty for an id that the tokenizer
 * does not know. Valid as long as the engine. */
MILLRACE_API millrace_status millrace_token_bytes(const millrace_engine* engine, int32_t token_id,
                                                  millrace_text* bytes);

/* Where in a reply its first token stands. */
typedef int32_t millrace_reply_start;
enum {
  MILLRACE_REPLY_NONE = 0, /* plain text: there are no parts to tell apart */
  MILLRACE_REPLY_REASONING = 1,
  MILLRACE_REPLY_CONTENT = 2,
  MILLRACE_REPLY_REASONING_CONTINUED = 3, /* behind the beginning that the request gave */
  MILLRACE_REPLY_CONTENT_CONTINUED = 4,
  MILLRACE_REPLY_TOOL_CALLS = 5
};

/* The prompt of a chat, given as a Chat Completions request in JSON: messages, tools, tool_choice,
 * response_format, thinking, reasoning_effort, and others that shape the prompt. Fields that do not
 * are ignored here. *reply_start is for millrace_request_options. */
MILLRACE_API millrace_status millrace_encode_chat(const millrace_engine* engine,
                                                  millrace_text chat_json, int32_t* ids,
                                                  size_t capacity, size_t* size,
                                                  millrace_reply_start* reply_start);

/* ---- Sampling parameters. Names and meanings are those of the OpenAI API and of vLLM;
 * docs/sampling.md has the details. */

typedef struct millrace_logit_bias {
  int32_t token_id;
  double bias; /* -100 to 100 */
} millrace_logit_bias;

typedef struct millrace_sampling_params {
  uint32_t struct_size;
  int32_t include_stop_str_in_output; /* 0 */
  int32_t skip_special_tokens;        /* 1: control tokens leave no text */
  int32_t ignore_eos;                 /* 0; otherwise end tokens are tokens like others */

  double temperature; /* 1; 0 to 2; 0: the likeliest token, always */
  double top_p;       /* 1; above 0 */
  double min_p;       /* 0 */
  int64_t top_k;      /* 0: off, like -1 */

  double presence_penalty;   /* 0; -2 to 2 */
  double frequency_penalty;  /* 0; -2 to 2 */
  double repetition_penalty; /* 1 */

  /* Optional numbers: NULL is none. */
  const uint64_t* seed;           /* none: one is drawn (millrace_get_request_info) */
  const int64_t* max_tokens;      /* none: as many as the context holds; 0: the prompt only */
  const int64_t* logprobs;        /* so many alternatives beside the token itself; -1: all */
  const int64_t* prompt_logprobs; /* the same of the prompt's tokens */
  int64_t min_tokens;             /* 0 */

  const millrace_text* stop; /* strings that end the output; in a chat, its answer only */
  size_t num_stop;
  const millrace_text* bad_words; /* never come out, neither at the start nor behind a blank */
  size_t num_bad_words;
  const millrace_token_ids* bad_words_token_ids; /* sequences of tokens that never come out */
  size_t num_bad_words_token_ids;
  const millrace_logit_bias* logit_bias;
  size_t num_logit_bias;
  millrace_token_ids stop_token_ids;    /* besides the model's end tokens */
  millrace_token_ids allowed_token_ids; /* empty: every token */
} millrace_sampling_params;

/* The defaults of the API, as the comments give them. */
MILLRACE_API millrace_status millrace_sampling_params_init(millrace_sampling_params* params,
                                                           size_t struct_size);
/* The same with what the model's generation_config.json recommends; `params` is overwritten, after
 * it was initialised. */
MILLRACE_API millrace_status millrace_default_sampling_params(const millrace_engine* engine,
                                                              millrace_sampling_params* params);

/* ---- Requests. */

typedef struct millrace_request millrace_request;

typedef struct millrace_request_options {
  uint32_t struct_size;
  uint32_t text_flags; /* MILLRACE_ADD_BOS; how `text` becomes tokens */

  /* The prompt: one of these three. */
  millrace_text text;
  millrace_text chat_json;      /* as for millrace_encode_chat, with its sampling parameters */
  millrace_token_ids token_ids; /* at least one */

  millrace_reply_start reply_start;         /* of token_ids */
  int32_t num_choices;                      /* 1; 1 to 128 answers to the same prompt. Other than 1
                                             * it goes before n of chat_json */
  /* NULL: what the model recommends, and over it what chat_json says (temperature, max_tokens, n
   * and the others of Chat Completions). Otherwise these stand for all of chat_json's, n too. */
  const millrace_sampling_params* sampling;

  int32_t priority;           /* 0; -4 to 4, lower is served first */
  int32_t reserved;           /* 0 */
  double timeout_ms;          /* from now; then the request ends; 0: never */
  millrace_text fairness_key; /* requests of one priority are served evenly by key */
  millrace_text request_id;   /* for messages; need not be unique */

  /* Called by the engine's thread when there is something to read, and never after the request was
   * destroyed. Must return soon, and may not call the library. */
  void (*on_event)(void* user_data);
  void* event_data;
} millrace_request_options;

MILLRACE_API millrace_status millrace_request_options_init(millrace_request_options* options,
                                                           size_t struct_size);

/* Begins to answer. Refuses at once what makes no sense or does not fit, and with
 * MILLRACE_EXHAUSTED a request that would be one too many. On error *request is NULL.
 *
 * At most 256 events wait to be read; then the request rests until half of them are read. */
MILLRACE_API millrace_status millrace_submit(millrace_engine* engine,
                                             const millrace_request_options* options,
                                             millrace_request** request);

/* Every choice that has not ended will do so with MILLRACE_FINISH_ABORT; events go on until
 * then. */
MILLRACE_API millrace_status millrace_cancel(millrace_request* request);

/* Ends the request if it has not ended. */
MILLRACE_API millrace_status millrace_request_destroy(millrace_request* request);

typedef struct millrace_request_info {
  uint32_t struct_size;
  int32_t num_choices;
  uint64_t seed; /* the one given, or the one drawn: with it the answer can be repeated */
  int64_t num_prompt_tokens;
  millrace_reply_start reply_start;
  int32_t reserved;
} millrace_request_info;

MILLRACE_API millrace_status millrace_request_info_init(millrace_request_info* info,
                                                        size_t struct_size);
MILLRACE_API millrace_status millrace_get_request_info(const millrace_request* request,
                                                       millrace_request_info* info);

/* ---- Events. */

typedef int32_t millrace_finish_reason;
enum {
  MILLRACE_FINISH_NONE = 0,       /* it goes on */
  MILLRACE_FINISH_STOP = 1,       /* an end token, a stop token or a stop string */
  MILLRACE_FINISH_LENGTH = 2,     /* max_tokens, or the end of the context */
  MILLRACE_FINISH_TOOL_CALLS = 3, /* a chat's reply ended with calls */
  MILLRACE_FINISH_ABORT = 4,      /* cancelled */
  MILLRACE_FINISH_TIMEOUT = 5,    /* the request's time was over */
  MILLRACE_FINISH_ERROR = 6       /* it cannot go on; the event says why */
};

/* "stop", "length", "tool_calls", "abort", "timeout", "error"; "" otherwise. Static. */
MILLRACE_API const char* millrace_finish_reason_name(millrace_finish_reason reason);

typedef struct millrace_logprob {
  int32_t token_id;
  float logprob; /* of the raw distribution, before penalties and temperature */
  int64_t rank;  /* from 1, in descending order of probability */
} millrace_logprob;

typedef struct millrace_token_logprobs {
  millrace_logprob token;      /* the one that stands at this position */
  const millrace_logprob* top; /* the likeliest ones, best first */
  size_t num_top;
} millrace_token_logprobs;

enum {
  MILLRACE_PART_REASONING = 0, /* more reasoning */
  MILLRACE_PART_CONTENT = 1,   /* more of the answer */
  MILLRACE_PART_TOOL_CALL = 2, /* call `call_idx` begins; the text is its name */
  MILLRACE_PART_ARGUMENTS = 3  /* more of the JSON text of the arguments of call `call_idx` */
};

typedef struct millrace_reply_part {
  int32_t kind;     /* MILLRACE_PART_... */
  int32_t call_idx; /* -1 for reasoning and content */
  millrace_text text;
} millrace_reply_part;

/* One step of one choice. Everything it points to is valid until the next call with its request
 * other than millrace_cancel. */
typedef struct millrace_event {
  uint32_t struct_size;
  int32_t choice_idx;
  int32_t token_id; /* -1: the step only brought the prompt forward, or ended the choice */
  millrace_finish_reason finish_reason; /* not NONE on the last event of each choice */
  int64_t num_computed_tokens;          /* of the prompt and the output */

  /* Text that is settled, in whole characters: no stop string will take it back. It may lag behind
   * the tokens. All texts of a choice together are its output. */
  millrace_text text;
  const millrace_reply_part* parts; /* a chat's text again, parsed */
  size_t num_parts;

  const millrace_token_logprobs* logprobs; /* of the token; NULL: not asked for */
  /* Of the next prompt tokens. Nothing comes before the first token, so they begin with the second.
   * On events of choice 0. */
  const millrace_token_logprobs* prompt_logprobs;
  size_t num_prompt_logprobs;

  /* With MILLRACE_FINISH_STOP: the stop token or stop string; neither for an end token. */
  millrace_text stop_string;
  int32_t stop_token_id;        /* -1: none */
  millrace_status error_status; /* with MILLRACE_FINISH_ERROR */
  millrace_text error;
} millrace_event;

MILLRACE_API millrace_status millrace_event_init(millrace_event* event, size_t struct_size);

/* The next event: MILLRACE_OK. Nothing came within timeout_ms: MILLRACE_TIMED_OUT. All choices
 * have ended and their events were read: MILLRACE_END. A negative timeout waits as long as it
 * takes, 0 does not wait. */
MILLRACE_API millrace_status millrace_next_event(millrace_request* request, int64_t timeout_ms,
                                                 millrace_event* event);

#ifdef __cplusplus
}
#endif

#endif /* MILLRACE_H_ */
