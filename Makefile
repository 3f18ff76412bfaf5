# Bare make lists the targets. Everything needs only Go (and, for the race
# detector, a C compiler); tools are pinned in internal/tools/go.mod.

SHELL       := bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

GO       ?= go
TOOL     := $(GO) tool -modfile=internal/tools/go.mod
MODULES  := . internal/tools internal/tools/proto internal/tools/helm internal/tools/images integration/kubernetes/components integration/kubernetes/containerd integration/kubernetes/coredns
FUZZTIME ?= 10s
COUNT    ?= 10
SEEDS    ?= 2000
SEED     ?=
TIMEOUT  ?= 0
FOR      ?= 10m
BENCH    ?= .
PKG      ?= ./...
OLD      ?= build/bench.old.txt

empty :=
comma := ,

# The race detector needs a C compiler. CI has one; a laptop without one is told.
ifneq ($(shell command -v $$($(GO) env CC) 2>/dev/null),)
RACE := -race
else
$(warning no C compiler: tests run without the race detector)
endif

# What is tested without the race detector: nothing there starts a goroutine (internal/depcheck looks),
# so that there is nothing for it to find, and it takes up to ten times as long.
ALONE := control/health control/wds controller/imports controller/notices controller/vip discovery/excerpt drill/measure drill/scenario federation/antientropy federation/ledger gateway/picker health internal/depcheck nodeproxy/acceptqueue nodeproxy/picker nodeproxy/warmset policy

# At its end a program with the race detector sleeps for a second, unless it is told otherwise.
export GORACE := atexit_sleep_ms=50

# Fewer collections of garbage, as memory is there: three tests of nodeproxy with the race detector spent an eighth of
# their time on them (other packages were not measured).
test-nodeproxy test-nodeproxy-long test-timed test-race race: export GOGC := 400
test-nodeproxy test-nodeproxy-long test-timed test-race race: export GOMEMLIMIT := 2GiB

.PHONY: help demo build test test-nodeproxy test-nodeproxy-long test-timed test-more test-race test-debug test-large integration integration-more interop test-kubernetes test-kubernetes-ci scale-kubernetes test-kubelet chart images images-twice wan replicas drills soak torture overload race vet lint fuzz bench bench-path benchstat golden generate bench-federation tidy-check check clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  %-15s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: build ## run the failover drill and leave build/demo/report.html
	bin/isthmus drill examples/drills/partial-failure.yaml --out build/demo

# What programs say they are; without git the go command's own word counts.
VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null)

build: ## compile all of cmd/ into bin/
	@mkdir -p bin
	$(GO) build -trimpath -ldflags '-X github.com/isthmus-mesh/isthmus/internal/buildinfo.stamp=$(VERSION)' -o bin/ ./cmd/...

# make test is bounded to 15 minutes on 2 processors, from empty caches. nodeproxy takes one processor for most of that;
# the other packages run beside it. test-more has the rest, among it the LONG tests of nodeproxy: CI runs both.
test: vet ## gofmt, go vet, import laws, all packages with the race detector, the README's commands (15 minutes)
	$(GO) test -vet=off ./internal/depcheck
	$(MAKE) --no-print-directory -j2 test-nodeproxy test-race
	$(GO) test -count 1 -timeout 20m ./integration

# Simulations by one goroutine in virtual time run without the race detector, which would find nothing and take ten times
# as long ("go:build !race"). What measures time with real processes runs alone.
test-more: lint ## what CI runs beside make test: staticcheck, large simulations, random schedules, captured pods, a slow line
	$(MAKE) --no-print-directory test-debug
	$(MAKE) --no-print-directory test-large
	$(MAKE) --no-print-directory torture TIMEOUT=20m
	$(MAKE) --no-print-directory test-nodeproxy-long
	$(MAKE) --no-print-directory test-timed
	$(MAKE) --no-print-directory integration-more

# Tests of nodeproxy that fill real queues at a rate, and hold the witness to 100 ms: they run alone.
TIMED := ^Test(AFilledAcceptQueueAtTwoHundred|ABusyApplicationIsNotTakenForOneThat)

# Tests of nodeproxy that take five seconds or longer: half of the time of all. A name here that no test has costs nothing:
# what is not skipped in one target runs in it.
LONG := ^Test(ABalancerWithAffinityCosts|ACallThatMayNotLeaveWaits|ADeadGatewayIsAskedLess|ADeadGatewayIsLeftOutAndReadmitted|AGatewayServesOnBefore|AGatewayThatCannotReachItsPods|AGatewayThatStoppedInOrder|APlainRelayEndsWhenWho|AResetNeverArrives|AutoDialFallsBackToTCP|AutoMovesToQUICAndBack|CertificatesAreRenewedByQUIC|ConnectionsAreSpreadEvenlyOverGroupsByTheReal|DownloadsThatNobodyReads|EveryKindOfFailure|GatewayLossByQUIC|GatewaysThatAllDrain|PodsComeAndGoUnderTraffic|ReplicasBehind|ReplicasUnderRandom|RollingRestartBy|SelectorRandomSchedules|TheLastGatewayUnderRandom|TheOnlyGatewayIsUsed|TheWitnessUnderRandom|UnlinkEnds|WhoIsOverALimit|WitnessIgnoresLocalFailures)

# The race detector's own runtime (go 1.26) crashes now and then where timers that are due at once share a bubble of
# synctest (SIGSEGV in maybeRunChan). After such a crash, and only then, a package is run again, on one processor, where it was never seen to. A fault
# of ours panics, or says DATA RACE, and is not repeated.
test-nodeproxy: ONLY = -skip '$(TIMED)|$(LONG)'
test-nodeproxy-long: ONLY = -run '$(LONG)'
test-nodeproxy test-nodeproxy-long:
	@mkdir -p build; for cpu in '' '-cpu 1'; do \
		echo "$(GO) test $(RACE) $$cpu ./nodeproxy"; \
		$(GO) test $(RACE) -vet=off -timeout 20m $(ONLY) $$cpu ./nodeproxy >build/race.txt 2>&1 && ok=yes && break; \
		ok=; grep -qE '^SIGSEGV: segmentation violation|ThreadSanitizer: CHECK failed' build/race.txt && ! grep -q 'DATA RACE' build/race.txt || break; \
		done; cat build/race.txt; [ "$$ok" = yes ]

test-timed:
	$(GO) test $(RACE) -vet=off -timeout 10m -run '$(TIMED)' ./nodeproxy

# control/ads, discovery/kube and hbone/pool run on one processor, for the crash above.
test-race:
	$(GO) test $(RACE) -vet=off -cpu 1 -timeout 30m ./control/ads ./discovery/kube ./hbone/pool
	$(GO) test $(RACE) -vet=off -p 4 -timeout 30m $$($(GO) list ./... | grep -vE '/integration(/|$$)|/isthmus/(nodeproxy|control/ads|discovery/kube|hbone/pool|$(subst $(empty) ,|,$(strip $(ALONE))))$$')

test-debug:
	$(GO) test -tags isthmus_debug -timeout 15m ./hbone/...
	HBONE_TRANSPORT=quic $(GO) test -count 1 -tags isthmus_debug -timeout 15m ./hbone

test-large:
	$(GO) test -vet=off -timeout 15m $(addprefix ./,$(ALONE)) ./internal/overload ./discovery ./discovery/file
	$(GO) test -vet=off -timeout 15m -run '^Test(ABurstIsWith|TheLastGateway|ReplicasUnderRandom|TheWitnessUnderRandom)' ./nodeproxy
	$(GO) test -vet=off -timeout 15m -run '^Test(GatewaysThatAreNotBelieved|ConnectionsEndWith)' ./federation/gossip

race: ## package tests with the race detector, without lint (PKG=./gateway)
	$(GO) test $(RACE) -timeout 30m $(PKG)

integration: ## start the real binaries as processes: the README's commands, small drills and, as root, captured pods and a part of wan
	$(GO) test -count 1 -timeout 20m ./integration
	$(MAKE) --no-print-directory integration-more

integration-more:
	$(GO) test -count 1 -parallel 4 -timeout 10m ./integration/capture
	WAN=yes $(GO) test -short -v -count 1 -timeout 15m ./integration/wan

replicas: ## as root, on a machine that has little else to do: replicas behind one address are cut off, killed and replaced (40 s)
	REPLICAS=yes $(GO) test -v -count 1 -timeout 10m ./integration/replicas

interop: ## as root: every role beside stock ztunnel (ZTUNNEL=<binary>)
	ZTUNNEL="$(abspath $(ZTUNNEL))" $(GO) test -v -count 1 -timeout 15m ./integration/interop
	ZTUNNEL="$(abspath $(ZTUNNEL))" $(GO) test -v -count 1 -timeout 5m -run '^TestStockZtunnel$$' ./control/ads

# helm is in a module of its own: its first build takes a minute or two of CPU.
build/helm: internal/tools/helm/go.mod
	@mkdir -p build
	CGO_ENABLED=0 $(GO) build -modfile=internal/tools/helm/go.mod -trimpath -o build/helm helm.sh/helm/v4/cmd/helm

# Static binaries without a build id, and images that depend on nothing but them. What the
# images say of their time is the commit's.
IMAGES  ?= build/images
CREATED ?= $(shell git log -1 --format=%ct 2>/dev/null || echo 0)
ARCHES  ?= amd64 arm64
images: ## build OCI images of all programs for amd64 and arm64 into build/images, without a registry or daemon (layouts and tars; ARCHES=amd64)
	rm -rf $(IMAGES); mkdir -p $(IMAGES)/bin
	$(GO) build -C internal/tools/images -o $(abspath $(IMAGES))/tool .
	@for arch in $(ARCHES); do for p in cmd/*/; do name=isthmus-$$(basename $$p); echo "$$arch $$name"; \
		CGO_ENABLED=0 GOOS=linux GOARCH=$$arch $(GO) build -trimpath -buildvcs=false -ldflags '-s -w -buildid= -X github.com/isthmus-mesh/isthmus/internal/buildinfo.stamp=$(VERSION)' \
			-o $(IMAGES)/bin/$$arch/$${name/isthmus-isthmus/isthmus} ./$$p || exit $$?; done; done
	$(IMAGES)/tool --bin $(IMAGES)/bin --out $(IMAGES) --version "$(subst +,-,$(VERSION))" --created $(CREATED) --architectures "$(subst $(empty) ,$(comma),$(strip $(ARCHES)))"

images-twice: ## build the images twice, the second time from a copy of the source elsewhere, and compare every byte
	again=$$(mktemp -d); trap 'rm -rf "$$again"' EXIT; git ls-files -z | xargs -0 cp --parents -t "$$again"; \
	$(MAKE) images VERSION=$(VERSION) CREATED=$(CREATED); $(MAKE) -C "$$again" images VERSION=$(VERSION) CREATED=$(CREATED); \
	rm $(IMAGES)/tool "$$again/$(IMAGES)/tool"; diff -r $(IMAGES) "$$again/$(IMAGES)"; echo "the same bytes twice"

chart: build/helm ## lint and render the chart, and compare with its golden files (UPDATE=-update rewrites them; helm's first build takes a minute)
	HELM="$(abspath build/helm)" $(GO) test -count 1 ./helm $(UPDATE)

# The version is stamped as the release builds of Kubernetes have it: clients ask for it.
KUBE_VERSION := v1.36.3
build/kubernetes/components: integration/kubernetes/components/main.go integration/kubernetes/components/go.mod
	@mkdir -p build/kubernetes
	cd integration/kubernetes/components && CGO_ENABLED=0 $(GO) build -trimpath -ldflags "-s -w $$(printf -- '-X %s.gitVersion=$(KUBE_VERSION) -X %s.gitMajor=1 -X %s.gitMinor=36 -X %s.gitTreeState=clean ' $$(for p in k8s.io/component-base/version k8s.io/client-go/pkg/version; do echo $$p $$p $$p $$p; done))" -o ../../../build/kubernetes/components .

RUN  ?= .
test-kubernetes: build/kubernetes/components build/helm ## as root: two clusters with gateways and node proxies on real API servers (their first build takes minutes; OUTAGE=5m RUN=Page)
	KUBERNETES="$(abspath build/kubernetes/components)" HELM="$(abspath build/helm)" $(GO) test -v -count 1 -timeout 25m -run '$(RUN)' -skip '^Test(Scale|Kubelet.*)$$' ./integration/kubernetes

# containerd, runc and CNI plugins, pinned in a module of their own. runc without seccomp
# would refuse the pods of a kubelet.
CONTAINERS := build/kubernetes/containers
$(CONTAINERS)/ctr: integration/kubernetes/containerd/go.mod
	cd integration/kubernetes/containerd && out=$(abspath $(CONTAINERS))/ && \
		CGO_ENABLED=1 $(GO) build -trimpath -tags seccomp -ldflags '-s -w' -o $$out github.com/opencontainers/runc && \
		CGO_ENABLED=0 $(GO) build -trimpath -ldflags '-s -w' -o $$out github.com/containernetworking/plugins/plugins/{ipam/host-local,main/bridge,main/ptp,main/loopback} && \
		CGO_ENABLED=0 $(GO) build -trimpath -tags 'no_btrfs no_devmapper no_zfs' -ldflags '-s -w' -o $$out github.com/containerd/containerd/v2/cmd/{containerd,containerd-shim-runc-v2,ctr}

build/kubernetes/coredns: integration/kubernetes/coredns/main.go integration/kubernetes/coredns/go.mod
	@mkdir -p build/kubernetes
	cd integration/kubernetes/coredns && CGO_ENABLED=0 $(GO) build -trimpath -ldflags '-s -w' -o ../../../build/kubernetes/coredns .

# What a kubelet's containers need of the machine, checked before anything is built.
KUBELET_NEEDS := nft:nftables ip:iproute2 busybox:busybox-static curl:curl gcc:gcc pkg-config:pkg-config
.PHONY: kubelet-needs
kubelet-needs:
	@[ "$$(id -u)" = 0 ] || { echo 'kubelets need root: run make test-kubelet as root' >&2; exit 1; }
	@missing=; for n in $(KUBELET_NEEDS); do command -v "$${n%%:*}" >/dev/null || missing+=" $${n#*:}"; done; \
		pkg-config --exists libseccomp 2>/dev/null || missing+=" libseccomp-dev"; \
		[ -z "$$missing" ] || { echo "kubelets need programs that are not installed: apt-get install$$missing" >&2; exit 1; }

test-kubelet: kubelet-needs ## as root: the charts on two clusters of real kubelets with containerd (their first build takes minutes; RUN=TestKubeletRollouts)
	$(MAKE) --no-print-directory build/kubernetes/components build/kubernetes/coredns build/helm $(CONTAINERS)/ctr
	$(MAKE) --no-print-directory images IMAGES=build/kubernetes/images ARCHES=$$($(GO) env GOARCH)
	KUBERNETES="$(abspath build/kubernetes/components)" HELM="$(abspath build/helm)" CONTAINERS="$(abspath $(CONTAINERS))" COREDNS="$(abspath build/kubernetes/coredns)" IMAGES="$(abspath build/kubernetes/images)" \
		$(GO) test -v -count 1 -timeout 25m -run '$(if $(filter .,$(RUN)),^TestKubelet,$(RUN))' ./integration/kubernetes

# What of that CI runs: tests that were green ten times in a row on a busy machine. A test
# comes here when it has been, and leaves when it fails for a reason of its own.
KUBERNETES_CI := \
	TestAnAPIServerTakesWhatTheChartRenders \
	TestEachControllerIssuesCertificates \
	TestGatewayFollowsARealAPIServer \
	TestTheProcessesOfTheChartBecomeReady
test-kubernetes-ci:
	$(MAKE) --no-print-directory test-kubernetes RUN='^($(subst $(empty) ,|,$(strip $(KUBERNETES_CI))))$$'

SCALE ?= yes
PART  ?= .
scale-kubernetes: build/kubernetes/components ## as root: 20 000 pods and 2 000 services on a real kube-apiserver: what gateways and node proxies need and cost (ten minutes; SCALE=/tmp/scale keeps the cluster for the next time, PART=Cache runs one part)
	SCALE=$(SCALE) KUBERNETES="$(abspath build/kubernetes/components)" $(GO) test -v -count 1 -timeout 40m -run '^TestScale$$/$(PART)' ./integration/kubernetes

wan: ## as root: new connections, load and faults over a line of 40 ms; with ZTUNNEL=<binary> beside stock ztunnel
	WAN=yes ZTUNNEL="$(abspath $(ZTUNNEL))" $(GO) test -v -count 1 -timeout 15m ./integration/wan

drills: build ## run every shipped scenario into build/drills (several minutes; blackhole only as root)
	@for f in examples/drills/*.yaml; do \
		if grep -q 'kind: blackhole' "$$f" && [ "$$(id -u)" != 0 ]; then echo "NOT RUN: $$f needs root"; continue; fi; \
		bin/isthmus drill "$$f" --plain --out "build/drills/$$(basename "$$f" .yaml)" || exit $$?; done

soak: build ## break off a fifth of 100 connections/s while pods come and go, and look for what is left (FOR=10m)
	@mkdir -p build
	$(GO) build -trimpath -o build/soak ./integration/soak
	build/soak --for $(FOR) $(ARGS)

torture: ## run random schedules of connections against the model of two TCP connections (SEEDS=100000, or SEED=17 alone)
	TORTURE_SEEDS=$(SEEDS) TORTURE_SEED=$(SEED) $(GO) test -run '^TestTorture$$' -count 1 -timeout $(TIMEOUT) ./nodeproxy

overload: build ## offer half to four times the new connections that can be served, the load on processors of its own (ARGS="--paths double", ARGS="--apart=false")
	@mkdir -p build
	$(GO) build -trimpath -o build/offer ./integration/overload
	build/offer $(ARGS)

vet: ## gofmt, go vet
	@unformatted=$$(gofmt -l .); if [ -n "$$unformatted" ]; then echo "gofmt would change:"; echo "$$unformatted"; exit 1; fi
	$(GO) vet ./...

lint: vet ## gofmt, go vet, staticcheck
	$(TOOL) staticcheck ./...

# The fuzzer now and then takes the end of its time for a failure ("context
# deadline exceeded", no failing input): that is run once more.
fuzz: ## run every Fuzz target for FUZZTIME=10s each (PKG=./hbone for one package)
	@mkdir -p build; find $(patsubst %/...,%,$(PKG)) -name '*_test.go' | sort | { xargs grep -HoE '^func Fuzz[A-Za-z0-9_]+' || true; } | while IFS=: read -r file name; do \
		echo "== $$(dirname "$$file") $${name#func }"; \
		run() { $(GO) test "./$$(dirname "$$file")" -run '^$$' -fuzz "^$${name#func }\$$" -fuzztime $(FUZZTIME) -fuzzminimizetime 10x </dev/null 2>&1 | tee build/fuzz.txt; }; \
		run || { grep -q 'context deadline exceeded' build/fuzz.txt && ! grep -q 'Failing input' build/fuzz.txt && run; }; \
	done

bench: ## run the benchmarks COUNT=10 times into build/bench.txt (BENCH=Build PKG=./discovery for some)
	@mkdir -p build
	$(GO) test -run '^$$' -bench '$(BENCH)' -benchmem -count $(COUNT) -timeout 60m $(PKG) | tee build/bench.txt

bench-path: build ## measure the real binaries as processes (as root with ZTUNNEL=<binary> beside stock ztunnel; ARGS="--runs 1 --loads up1")
	@mkdir -p build
	$(GO) build -trimpath -o build/benchpath ./integration/benchpath
	build/benchpath --ztunnel "$(abspath $(ZTUNNEL))" $(ARGS)

bench-federation: ## simulate federations of 5 to 200 gateways: bytes at rest, and how long an edge takes with delay and loss
	$(GO) test -run '^$$' -bench BenchmarkFederation -benchtime 1x -timeout 30m ./federation/antientropy

benchstat: ## compare build/bench.txt with OLD=build/bench.old.txt
	$(TOOL) benchstat $(OLD) build/bench.txt

golden: ## rewrite golden files and the tables that docs/ has from the code; review the diff as code
	$(GO) test ./control/wds ./discovery/file ./discovery/kube ./discovery/ztunnel ./health ./internal/doccheck -update

generate: ## rewrite generated code with the pinned generators
	$(GO) generate ./...

tidy-check: ## go.mod and go.sum of every module are as go mod tidy would write them
	@for m in $(MODULES); do echo "go mod tidy -diff in $$m"; (cd $$m && $(GO) mod tidy -diff); done

check: tidy-check build lint test ## what to run before a commit: tidy-check, build, lint, test, and generated code is current
	$(GO) generate ./...
	git diff --exit-code -- '*.pb.go'

clean: ## remove bin/ and build/
	rm -rf bin build
