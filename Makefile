# Front door. `make help` lists the targets; the build itself is CMake + Ninja (CMakePresets.json).
.DEFAULT_GOAL := help
.PHONY: help deps deps-check build demo check check-aarch64 bench format lint install clean

PREFIX ?= /usr/local
MODEL  ?= pemberley-4m
NIBBLE := build/release/nibble
LAUNCH := $(if $(shell command -v ccache 2>/dev/null),-DCMAKE_C_COMPILER_LAUNCHER=ccache)

help:
	@echo "make demo      build, quantize a small real model with AWQ, measure it, let it write (MODEL=smollm2: a chat model)"
	@echo "make check     install what is missing, build, run every test (CLIENTS=1: real clients too; FUZZ=1: fuzzers too)"
	@echo "make build     the program at $(NIBBLE)"
	@echo "make bench     kernels and whole steps, with the read bandwidth of the same run"
	@echo "make format    lay out the source (clang-format)"
	@echo "make lint      warnings of gcc and clang as errors, layout, floors"
	@echo "make install   program, library, header, pkg-config file (DESTDIR, PREFIX=$(PREFIX))"
	@echo "make check-aarch64  cross-compile and run the unit tests under qemu"
	@echo "make clean     remove build/"

deps:
	@tools/deps.sh build

deps-check:
	@tools/deps.sh check

build: deps
	@cmake --preset release -DNB_TESTS=OFF -DCMAKE_INSTALL_PREFIX=$(PREFIX) $(LAUNCH) >/dev/null
	@ninja -C build/release --quiet

demo: build
	@tools/demo.sh $(NIBBLE) $(MODEL)

check: deps-check
	@tools/check.sh

check-aarch64: deps-check
	@tools/check_aarch64.sh

bench: build
	@tools/bench.sh $(NIBBLE)

format:
	@git ls-files '*.c' '*.h' '*.inc' | xargs clang-format-14 -i

lint: deps-check
	@tools/lint.sh

install: build
	@DESTDIR=$(DESTDIR) cmake --install build/release --prefix $(PREFIX) --component nibble

clean:
	@rm -rf build
