#pragma once

// What operators and clients ask about the server itself. docs/server.md has the list.

#include <memory>

#include "server/call.h"

namespace millrace {

void list_models(std::unique_ptr<Call> call);
void get_model(std::unique_ptr<Call> call);
void health(std::unique_ptr<Call> call);
void health_live(std::unique_ptr<Call> call);
void version(std::unique_ptr<Call> call);
void load(std::unique_ptr<Call> call);
void metrics(std::unique_ptr<Call> call);
void server_info(std::unique_ptr<Call> call);
void openapi(std::unique_ptr<Call> call);
void engine_stats(std::unique_ptr<Call> call);
void drain(std::unique_ptr<Call> call);
void undrain(std::unique_ptr<Call> call);
void index(std::unique_ptr<Call> call);
void web_file(std::unique_ptr<Call> call);

}  // namespace millrace
