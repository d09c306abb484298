nb_floor(serve
  FILES errors.c head.c chunks.c relay.c gate.c http.c ask.c ask_chat.c gen.c gen_prepare.c gen_text.c constrain.c response.c items.c items_ask.c native.c metrics.c linger.c worker.c worker_engine.c route.c route_text.c route_info.c server.c loadgen.c
  DEPS engine text base
  LIBS PkgConfig::MICROHTTPD Threads::Threads m)
nb_embed(nb_serve src/serve/openapi.json nb_openapi)
