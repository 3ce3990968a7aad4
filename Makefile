# Two commands for everybody: `make demo` and `make test`. Both need only Rust and a C compiler.

CARGO ?= cargo
# Of the program, as `--features htc/emulated`.
FEATURES ?=
HTC := target/release/htc
# What `htc --version` names; empty outside a checkout.
export HTC_COMMIT := $(shell git rev-parse --short=12 HEAD 2>/dev/null)
DEMO := assets/demo
OUT := demo-output

.PHONY: help build demo test test-cuda check clean

help:
	@echo "make demo    compile the demo model, measure it against its source, let it write"
	@echo "make test    run every test"
	@echo "make test-cuda  run the tests of backends on a GPU, where there is one"
	@echo "make check   what CI checks beside the tests: format, lints, dependencies"
	@echo "make build   the program alone: $(HTC)"

build:
	$(CARGO) build --release --locked -p htc $(FEATURES)

demo: build
	@scripts/demo.sh $(HTC) $(DEMO) $(OUT)

test:
	@scripts/test.sh

test-cuda:
	@scripts/test_cuda.sh

check:
	@scripts/check.sh

clean:
	$(CARGO) clean
	rm -rf $(OUT)
