#pragma once

#include <memory>

#include "llm/llm.h"
#include "loadgen/http_target.h"
#include "loadgen/prompt_source.h"
#include "loadgen/target.h"
#include "net/event_loop.h"

namespace millrace {

// An engine in this process as the target of a load: the same requests as over the network, read on
// the same thread, without a server in between.
class EngineTarget : public Target {
 public:
  // All must outlive it. Requires: the prompts have tokens.
  EngineTarget(net::EventLoop& loop, Llm& llm, RequestFields fields, const PromptSource& prompts);
  ~EngineTarget() override;

  void send(const PlannedRequest& request, const Clock& clock, OnDone on_done) override;
  void cancel_all() override;

 private:
  struct Impl;
  std::shared_ptr<Impl> impl_;  // what the engine tells may come later
};

}  // namespace millrace
