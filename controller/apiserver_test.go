package controller

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/isthmus-mesh/isthmus/controller/imports"
	"github.com/isthmus-mesh/isthmus/controller/vip"
	"github.com/isthmus-mesh/isthmus/discovery/kube"
	"github.com/isthmus-mesh/isthmus/discovery/kube/owned"
)

// apiServer is as much of one as a leader writes to: namespaces, ServiceImports and ConfigMaps.
type apiServer struct {
	mu      sync.Mutex
	version int
	objects map[string]map[string]any // by resource/namespace/name
	watches map[chan string]string    // by the resource that they are of
	refuse  func(verb, resource, namespace, name string) *refusal
	admit   func(resource string, o map[string]any) // what a mutating webhook does to specs; nil: nothing
	wrote   map[string]int                          // requests that were not refused, by verb and resource
}

// refusal is an answer of an API server.
type refusal struct {
	code            int
	reason, message string
}

// noRight is how the authorizer says it.
func noRight(verb, resource string) *refusal {
	return &refusal{http.StatusForbidden, "Forbidden", fmt.Sprintf("%s is forbidden: User \"controller\" cannot %s resource %q", resource, verb, resource)}
}

func (a *apiServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	parts := strings.Split(strings.Trim(r.URL.Path, "/"), "/")
	if parts[0] == "api" {
		parts = parts[2:]
	} else {
		parts = parts[3:]
	}
	var namespace, name, sub string
	if len(parts) > 2 && parts[0] == "namespaces" {
		namespace, parts = parts[1], parts[2:]
	}
	if len(parts) == 0 {
		reply(w, http.StatusOK, map[string]any{"kind": "APIResourceList", "groupVersion": "multicluster.x-k8s.io/v1beta1",
			"resources": []any{map[string]any{"name": "serviceimports", "kind": "ServiceImport"}}})
		return
	}
	resource := parts[0]
	if len(parts) > 1 {
		name = parts[1]
	}
	if len(parts) > 2 {
		sub = parts[2]
	}
	verb := map[string]string{http.MethodGet: "get", http.MethodPost: "create", http.MethodPut: "update", http.MethodDelete: "delete"}[r.Method]
	switch {
	case r.URL.Query().Get("sendInitialEvents") != "":
		a.fail(w, refusal{http.StatusUnprocessableEntity, "Invalid", "no lists by watches"})
		return
	case r.URL.Query().Get("watch") != "":
		a.watch(w, r, resource)
		return
	}
	body := bodyOf(r)
	if verb == "create" {
		name = body["metadata"].(map[string]any)["name"].(string)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.refuse != nil {
		if x := a.refuse(verb, resource+strings.TrimPrefix("/"+sub, "/"), namespace, name); x != nil {
			a.fail(w, *x)
			return
		}
	}
	a.wrote[verb+" "+resource]++
	key := resource + "/" + namespace + "/" + name
	is, exists := a.objects[key]
	switch {
	case verb == "get" && name == "":
		kind, version := "ServiceImportList", "multicluster.x-k8s.io/v1beta1"
		if resource == "namespaces" {
			kind, version = "PartialObjectMetadataList", "meta.k8s.io/v1"
		}
		items := []any{}
		for k, o := range a.objects {
			if strings.HasPrefix(k, resource+"/") {
				items = append(items, o)
			}
		}
		reply(w, http.StatusOK, map[string]any{"kind": kind, "apiVersion": version, "metadata": map[string]any{"resourceVersion": fmt.Sprint(a.version)}, "items": items})
		return
	case verb != "create" && !exists:
		a.fail(w, refusal{http.StatusNotFound, "NotFound", key + " not found"})
		return
	case verb == "create" && exists:
		a.fail(w, refusal{http.StatusConflict, "AlreadyExists", key + " exists"})
		return
	case verb == "get":
		reply(w, http.StatusOK, is)
		return
	case verb == "update" && body["metadata"].(map[string]any)["resourceVersion"] != meta(is)["resourceVersion"]:
		a.fail(w, refusal{http.StatusConflict, "Conflict", key + " has changed"})
		return
	case verb == "delete":
		a.remove(key)
		reply(w, http.StatusOK, map[string]any{"kind": "Status", "apiVersion": "v1", "status": "Success"})
		return
	}
	if sub == "status" {
		next := clone(is)
		next["status"] = body["status"]
		body = next
	} else if exists {
		body["status"] = is["status"]
	}
	if a.admit != nil && sub != "status" {
		a.admit(resource, body)
	}
	a.put(key, body, sub != "status")
	reply(w, http.StatusOK, a.objects[key])
}

// bodyOf returns the object that is sent, as JSON has it. ConfigMaps come as protobuf.
func bodyOf(r *http.Request) (out map[string]any) {
	b, _ := io.ReadAll(r.Body)
	if r.Header.Get("Content-Type") != "application/vnd.kubernetes.protobuf" {
		json.Unmarshal(b, &out)
		return out
	}
	object := fieldsOf(fieldsOf(b[len("k8s\x00"):])[2][0]) // of runtime.Unknown
	of, data := fieldsOf(object[1][0]), map[string]any{}
	for _, x := range object[2] {
		data[string(fieldsOf(x)[1][0])] = string(slices.Concat(fieldsOf(x)[2]...))
	}
	about := map[string]any{"name": string(of[1][0]), "namespace": string(of[3][0])}
	if version := slices.Concat(of[6]...); len(version) > 0 {
		about["resourceVersion"] = string(version)
	}
	return map[string]any{"apiVersion": "v1", "kind": "ConfigMap", "metadata": about, "data": data}
}

// fieldsOf are those of a message that are not numbers.
func fieldsOf(b []byte) map[protowire.Number][][]byte {
	out := map[protowire.Number][][]byte{}
	for len(b) > 0 {
		field, kind, n := protowire.ConsumeTag(b)
		size := protowire.ConsumeFieldValue(field, kind, b[max(0, n):])
		if n < 0 || size < 0 {
			panic("this is no message")
		}
		if kind == protowire.BytesType {
			value, _ := protowire.ConsumeBytes(b[n:])
			out[field] = append(out[field], value)
		}
		b = b[n+size:]
	}
	return out
}

func meta(o map[string]any) map[string]any { return o["metadata"].(map[string]any) }

func clone(o map[string]any) (out map[string]any) {
	b, _ := json.Marshal(o)
	json.Unmarshal(b, &out)
	return out
}

// put writes an object; the caller holds mu.
func (a *apiServer) put(key string, o map[string]any, spec bool) {
	a.version++
	old, kind := a.objects[key], "MODIFIED"
	if old == nil {
		kind = "ADDED"
		meta(o)["uid"], meta(o)["creationTimestamp"], meta(o)["generation"] = fmt.Sprint("uid-", a.version), time.Now().UTC().Format(time.RFC3339), 1
	} else if spec {
		meta(o)["generation"] = a.version
	}
	meta(o)["resourceVersion"] = fmt.Sprint(a.version)
	a.objects[key] = clone(o)
	a.tell(key, kind, a.objects[key])
}

// remove deletes an object; the caller holds mu.
func (a *apiServer) remove(key string) {
	a.version++
	o := clone(a.objects[key])
	delete(a.objects, key)
	meta(o)["resourceVersion"] = fmt.Sprint(a.version)
	a.tell(key, "DELETED", o)
}

func (a *apiServer) tell(key, kind string, o map[string]any) {
	b, _ := json.Marshal(map[string]any{"type": kind, "object": o})
	for ch, resource := range a.watches {
		if strings.HasPrefix(key, resource+"/") {
			ch <- string(b) + "\n"
		}
	}
}

// cut ends all watches; the caller holds mu.
func (a *apiServer) cut() {
	for ch := range a.watches {
		close(ch)
		delete(a.watches, ch)
	}
}

func (a *apiServer) watch(w http.ResponseWriter, r *http.Request, resource string) {
	ch := make(chan string, 100_000)
	a.mu.Lock()
	if r.URL.Query().Get("resourceVersion") != fmt.Sprint(a.version) {
		a.mu.Unlock()
		a.fail(w, refusal{http.StatusGone, "Expired", "too old resource version"})
		return
	}
	a.watches[ch] = resource
	a.mu.Unlock()
	defer func() {
		a.mu.Lock()
		delete(a.watches, ch)
		a.mu.Unlock()
	}()
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusOK)
	w.(http.Flusher).Flush()
	for {
		select {
		case <-r.Context().Done():
			return
		case text, open := <-ch:
			if !open {
				return
			}
			w.Write([]byte(text))
			w.(http.Flusher).Flush()
		}
	}
}

func (a *apiServer) fail(w http.ResponseWriter, x refusal) {
	reply(w, x.code, map[string]any{"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": x.reason, "message": x.message, "code": x.code})
}

func reply(w http.ResponseWriter, code int, o any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	json.NewEncoder(w).Encode(o)
}

// imported are the imports that the API server has.
func (a *apiServer) imported(n vip.Name) (o map[string]any) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.objects["serviceimports/"+n.Namespace+"/"+n.Name]
}

// newLeader returns a process that leads, of an API server that has these namespaces.
func newLeader(t *testing.T, cfg Config, namespaces ...string) (*leader, *apiServer) {
	t.Helper()
	a := &apiServer{version: 1, objects: map[string]map[string]any{}, watches: map[chan string]string{}, wrote: map[string]int{}}
	for _, n := range namespaces {
		a.put("namespaces//"+n, map[string]any{"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": map[string]any{"name": n}}, true)
	}
	return leaderOf(t, a, cfg), a
}

// leaderOf returns another process that leads.
func leaderOf(t *testing.T, a *apiServer, cfg Config) *leader {
	t.Helper()
	server := httptest.NewServer(a)
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	text := fmt.Sprintf("{apiVersion: v1, kind: Config, current-context: x, clusters: [{name: x, cluster: {server: %q}}], contexts: [{name: x, context: {cluster: x, user: x}}], users: [{name: x, user: {}}]}", server.URL)
	if err := os.WriteFile(kubeconfig, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	client, err := owned.Open(kube.Config{Kubeconfig: kubeconfig}, "isthmus-system", zerolog.Nop())
	if err != nil {
		t.Fatal(err)
	}
	cfg.Network = "west"
	c := &Controller{cfg: cfg, log: zerolog.Nop(), client: client, source: &kube.Source{}, wake: make(chan struct{}, 1), wrong: make(chan struct{}, 1),
		imports: client.Imports(), declared: client.Exports(), namespaces: client.Namespaces(), exports: newExports(nil, "", nil)}
	c.objects = newObjects("west", cfg.VIPs.ranges(), func() {})
	c.metrics = newMetrics(prometheus.NewRegistry(), c)
	var running sync.WaitGroup
	running.Go(func() { c.imports.Run(t.Context()) })
	running.Go(func() { c.namespaces.Run(t.Context()) })
	t.Cleanup(func() {
		server.CloseClientConnections()
		server.Close()
		running.Wait()
	})
	for until := time.Now().Add(10 * time.Second); ; time.Sleep(time.Millisecond) {
		if _, ok := c.imports.All(); ok && c.namespaces.Known() {
			break
		}
		if time.Now().After(until) {
			t.Fatalf("nothing is known: %v", client.Failing())
		}
	}
	return &leader{Controller: c, text: client.Text(ledgerName), gates: newGates(), fights: newFights()}
}

// offer has network east export a service.
func (l *leader) offer(n vip.Name) {
	l.exports.mu.Lock()
	defer l.exports.mu.Unlock()
	l.exports.of[n] = map[string]imports.Export{"east": {Cluster: "east", Ports: []imports.Port{{Protocol: "TCP", Port: 80}}}}
}
