# flashvk. `make` alone lists the targets.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

# Go keeps its caches under HOME. Services and containers may lack one, or give one
# that cannot be written.
ifeq ($(shell [ -n "$${HOME:-}" ] && mkdir -p "$$HOME" 2>/dev/null && [ -w "$$HOME" ] && echo yes),)
export HOME := $(shell unset HOME; d=~; [ -w "$$d" ] || { d=$${TMPDIR:-/tmp}/home-$$(id -u); mkdir -m 700 -p "$$d" && [ -O "$$d" ]; }; echo "$$d")
endif

# Without a readable git folder (another owner, an archive) there is no commit to stamp.
BUILDVCS := $(shell git -C $(CURDIR) rev-parse HEAD >/dev/null 2>&1 && echo auto || echo false)
VKRUN := $(CURDIR)/tools/vkrun

# What the caller may set; `make help` explains.
PKGS ?= ./...
TESTFLAGS ?=
CHECKFLAGS ?=
BENCH ?=

# On a device of our own choosing nothing may be skipped. On the user's, what it lacks may.
ALL_PATHS := coopmat2,coopmat,scalar,unfused
# tools prepares the shell of a recipe: compiler, validator and driver, in variables.
# $$driver is gpu or lavapipe.
define tools
variables=$$(tools/toolchain --env); \
set -a; eval "$$variables"; set +a; \
which=$$($(VKRUN) --which); driver=$${which%% *}; \
echo "make: running on $$which" >&2
endef

.PHONY: help setup bench test race test-all others shaders check compileall release bundle clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@printf '%s\n' '' \
		'variables' \
		'  PKGS=./vk               test: packages instead of all' \
		'  TESTFLAGS="-v -run X"   test: more flags for go test' \
		'  CHECKFLAGS="-skip vet"  check: flags and names of checks for tools/check' \
		'  BENCH="--seqlen 512 …"  bench: flags for flashvk bench attention' \
		'  OUT=DIR                 bundle, release: where it goes' \
		'  FLASHVK_ALL=1           every test on lavapipe, as test-all does' \
		'  FLASHVK_DRIVER=gpu|lavapipe   instead of the best there is' \
		'  FLASHVK_LEAST=1         test: a device with the least limits of Vulkan 1.2' \
		'  FLASHVK_REQUIRE=coopmat2,…    test: paths whose absence is a failure; all on lavapipe' \
		'  XDG_CACHE_HOME=DIR      where flashvk/toolchain-KEY lives (400 MB), not ~/.cache'

setup:
	@command -v go >/dev/null || { echo 'make: no go in PATH: flashvk needs Go 1.24 or later' >&2; exit 1; }
	@command -v $$(go env CC) >/dev/null || { echo "make: no C compiler ($$(go env CC)): install gcc" >&2; exit 1; }

bin/flashvk: setup
	go build -buildvcs=$(BUILDVCS) -o $@ ./bench/flashvk

.PHONY: bin/flashvk

bench: bin/flashvk ## attention on the best device there is, checked, then timed
	@$(tools); \
	$(VKRUN) bin/flashvk bench attention $(BENCH)

# How long test takes on 2 cores, and how long with every case: as recipes see FLASHVK_ALL, so
# that test-all has its own. Lavapipe compiles kernels for nearly all of it.
LAVAPIPE_TIME = $(if $(FLASHVK_ALL),about 40 minutes on 2 cores with lavapipe,about 12 minutes on 2 cores with lavapipe; make test-all has every tile and takes about 40)
# LLVM's optimizations take up to a third of that time: make test leaves them out, test-all has them.
LAVAPIPE_ENV = $(if $(FLASHVK_ALL),,GALLIVM_PERF=$${GALLIVM_PERF-nopt})
# The packages with goroutines of their own or of their tests, or with parallel loops, which meet the
# locks of the others, too; compiling everything once more for -race took 7 minutes. Examples have no
# goroutines. Tests/cli starts a program that is the same with -race, vktest has a goroutine to be
# failed in.
RACE_PKGS := $(shell grep -rlE --include='*.go' '^\s*go [a-z]|parallel\.(For|Workers|Pieces)\b' . | grep -vE '^./(tools|tests/cli|internal/vk/vktest)/' | xargs -n1 dirname | sort -u)
# The packages that take longest begin first, so that none of them is alone at the end; tests/cli finds
# kernels of the others in the driver's cache. The compiler of Go takes a quarter less time if it
# collects no garbage below 1 GiB.
LONG_PKGS := ./attention ./tests/conformance ./tests ./tests/cli
GOTEST := go test -vet=off -toolexec 'env GOGC=off GOMEMLIMIT=1GiB' -exec $(VKRUN) -shuffle=on -timeout 60m

test: setup ## the test suite on the best device there is
	@$(tools); \
	export FLASHVK_REQUIRE_TOOLS=1 time='every tile on a GPU'; \
	if [ $$driver = lavapipe ]; then export FLASHVK_REQUIRE=$${FLASHVK_REQUIRE-$(ALL_PATHS)} $(LAVAPIPE_ENV); time='$(LAVAPIPE_TIME)'; fi; \
	[ '$(PKGS)' != ./... ] || echo "make: $$(go list ./... | wc -l) packages: $$time" >&2; \
	set -x; \
	$(GOTEST) $(TESTFLAGS) $(if $(filter ./...,$(PKGS)),$(LONG_PKGS)) $(PKGS)

race: setup ## the short tests of what is concurrent, with the race detector
	@$(tools); export FLASHVK_REQUIRE_TOOLS=1 $(LAVAPIPE_ENV); set -x; $(GOTEST) -race -short -skip '^Example' $(TESTFLAGS) ./vk $(RACE_PKGS)

test-all: export FLASHVK_ALL := 1
test-all: test race others ## the same with every tile and case on lavapipe, too: what GPUs run always

# Random problems on devices that are not here; each day has its own.
OTHERS ?= $(if $(FLASHVK_ALL),200,40)
others: setup ## random problems on lavapipe with subgroups of 4 and of 16, with Vulkan 1.2's least limits, and on SwiftShader, with the fixed problems
	@$(tools); \
	random() { echo "make: $$1" >&2; shift; env FLASHVK_DRIVER=lavapipe FLASHVK_REQUIRE=scalar GALLIVM_PERF=nopt "$$@" \
		$(GOTEST) ./internal/bench/trial -run 'TestRandom$$' -random-count $(OTHERS) -random-seed $$(date +%Y%m%d); }; \
	random 'subgroups of 4' LP_NATIVE_VECTOR_WIDTH=128; \
	random 'subgroups of 16' LP_NATIVE_VECTOR_WIDTH=512; \
	random 'the least limits' FLASHVK_LEAST=1; \
	if swiftshader=$$(tools/toolchain --swiftshader); then \
		export VK_DRIVER_FILES=$$swiftshader/vk_swiftshader_icd.json; \
		random SwiftShader FLASHVK_DRIVER=; \
		FLASHVK_ALL=1 FLASHVK_REQUIRE=scalar FLASHVK_DRIVER= $(GOTEST) ./tests/conformance; \
	fi

shaders: setup ## GLSL to SPIR-V: writes shaders/spv
	@$(tools); go test ./shaders -vet=off -run TestCurrent -generate -all

check: setup ## format, vet, staticcheck, imports, budgets, SPIR-V current, valid, convergent and proven on a GPU
	go run ./tools/check $(CHECKFLAGS)

# The GPUs that kernels are compiled for without one, by the name that RADV has for them.
COMPILED := navi21:rdna2 navi31:rdna3

compileall: setup ## compiles all kernels with AMD's compiler, without a GPU, and compares registers, spills and waves with conformance/compiled-*.md
	@root=$$(tools/toolchain --radv); \
	for x in $(COMPILED); do \
		RADV_FORCE_FAMILY=$${x%:*} FLASHVK_TOOLCHAIN=$$root VK_DRIVER_FILES=$$root/radeon_icd.json \
			tools/vkrun go run ./tools/compileall $(COMPILEALL) conformance/compiled-$${x#*:}.md; \
	done

release: OUT ?= dist
release: setup ## archives for linux/amd64, linux/arm64 and windows/amd64, with completions, manual pages and checksums
	tools/release $(OUT)

bundle: OUT ?= bundle
bundle: setup ## a folder with binaries and tests for a GPU machine without Go
	BUILDVCS=$(BUILDVCS) tools/bundle $(OUT)

clean: ## removes what the targets built here; caches stay
	rm -rf bin bundle dist
