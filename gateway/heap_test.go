package gateway

import (
	"bytes"
	"context"
	"crypto/rand"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/isthmus-mesh/isthmus/discovery"
	"github.com/isthmus-mesh/isthmus/discovery/file"
	"github.com/isthmus-mesh/isthmus/federation/antientropy"
	"github.com/isthmus-mesh/isthmus/federation/ledger"
	"github.com/isthmus-mesh/isthmus/federation/networkkey"
	"github.com/isthmus-mesh/isthmus/federation/record"
	"github.com/isthmus-mesh/isthmus/internal/reprobe"
	"github.com/isthmus-mesh/isthmus/mesh"
)

// large is a discovery file of one network with pods pods that are members of
// services global services.
func large(pods, services int) []byte {
	var b bytes.Buffer
	b.WriteString("networks: [{name: west}]\ngateways: [{name: gw-1, network: west, address: 192.168.0.1:15008}]\nservices:\n")
	for s := range services {
		fmt.Fprintf(&b, "- {name: svc-%d, namespace: ns-%d, global: true, vips: [240.240.%d.%d], ports: [{name: http, port: 80, targetPort: 8080}]}\n", s, s%50, s>>8, s&255)
	}
	b.WriteString("workloads:\n")
	for p := range pods {
		s := p % services
		fmt.Fprintf(&b, "- {uid: 8f2c1d3e-0000-4000-8000-%012d, name: svc-%d-7d9f8c6b5-%05d, namespace: ns-%d, serviceAccount: sa-%d, network: west, node: node-%d, cluster: c, addresses: [10.%d.%d.%d], locality: {region: eu-west-1, zone: eu-west-1%c}, services: [svc-%d.ns-%d.svc.cluster.local]}\n",
			p, s, p, s%50, s, p/30, p>>16, p>>8&255, p&255, 'a'+p%3, s, s%50)
	}
	return b.Bytes()
}

// BenchmarkHeap is what a gateway with 50 000 pods and 2 000 global services holds
// after a collection, beside nine other networks with two gateways and as many
// services each: less than 250 MiB.
func BenchmarkHeap(b *testing.B) {
	path := filepath.Join(b.TempDir(), "mesh.yaml")
	if err := os.WriteFile(path, large(50_000, 2_000), 0o600); err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		before := heap()
		store := &discovery.Store{}
		watcher, err := discovered(path, store)
		if err != nil {
			b.Fatal(err)
		}
		found := heap()
		ctx, stop := context.WithCancel(context.Background())
		backends := newBackends("west", DefaultConfig().OutlierDetection, nothingWitnessed, reprobe.New[mesh.EndpointID](ctx, hopSchedule),
			func(context.Context, *mesh.Workload) error { return nil }, func(mesh.EndpointID) *mesh.Workload { return nil }, zerolog.Nop(), func(*mesh.Workload) {})
		instances := newInstances(b)
		deliveries := &deliveries{network: "west", store: store, pods: backends.podHealth, why: backends.podDetail, publish: instances.say, told: func(portKey) {},
			ports: map[string]map[uint16]*delivery{}, exports: map[string]exported{}}
		deliveries.start(time.Now())
		own := heap()
		instances.others()
		all := heap()
		runtime.KeepAlive([]any{watcher, store, backends, deliveries, instances})
		stop()
		known := 0
		for _, n := range instances.ledger.Networks() {
			known += len(instances.ledger.Ports(n))
		}
		if known != 10*2_000 || store.Current().NumWorkloads() != 50_000 {
			b.Fatalf("%d ports of %d workloads", known, store.Current().NumWorkloads())
		}
		for unit, bytes := range map[string]uint64{"discovery-MiB": found - before, "health-MiB": own - found, "other-networks-MiB": all - own, "heap-MiB": all - before} {
			b.ReportMetric(float64(bytes)/(1<<20), unit)
		}
	}
}

// discovered is what a gateway of west keeps of the file at path.
func discovered(path string, store *discovery.Store) (*file.Watcher, error) {
	c := Config{Network: "west", Discovery: Discovery{Config: file.Config{File: path, MaxRemoval: 1}}}
	return c.discover(store, zerolog.Nop())
}

// elsewhere adds to a file as many pods of the same services on another network.
func elsewhere(b []byte, pods, services int) []byte {
	out := bytes.NewBuffer(bytes.Replace(b, []byte("{name: west}]"), []byte("{name: west}, {name: north}]"), 1))
	for p := range pods {
		s := p % services
		fmt.Fprintf(out, "- {uid: 9f2c1d3e-0000-4000-8000-%012d, name: svc-%d-7d9f8c6b5-%05d, namespace: ns-%d, serviceAccount: sa-%d, network: north, node: node-%d, cluster: c, addresses: [10.%d.%d.%d], services: [svc-%d.ns-%d.svc.cluster.local]}\n",
			p, s, p, s%50, s, p/30, p>>16, p>>8&255, p&255, s, s%50)
	}
	return out.Bytes()
}

// A gateway keeps its own network whole, and of the workloads elsewhere that its file
// lists what their services come to.
func TestAGatewayKeepsNoWorkloadOfAnotherNetwork(t *testing.T) {
	path := filepath.Join(t.TempDir(), "mesh.yaml")
	if err := os.WriteFile(path, elsewhere(large(20, 5), 30, 5), 0o600); err != nil {
		t.Fatal(err)
	}
	store := &discovery.Store{}
	if _, err := discovered(path, store); err != nil {
		t.Fatal(err)
	}
	s := store.Current()
	for _, w := range s.Workloads() {
		if w.Network != "west" {
			t.Errorf("%s of %s is kept", w.UID, w.Network)
		}
	}
	if s.NumWorkloads() != 20 {
		t.Errorf("%d workloads, want the 20 of west", s.NumWorkloads())
	}
	for _, svc := range s.Services() {
		if share, ok := s.Share(svc, "north"); !ok || share.Capacity != 6 || len(share.Identities) != 1 {
			t.Errorf("%s on north: %v, %+v; want a share of 6", svc.Hostname, ok, share.Export)
		}
	}
}

// BenchmarkHeapElsewhere is what discovery takes where the file lists as many pods of
// another network as of the own one.
func BenchmarkHeapElsewhere(b *testing.B) {
	for name, content := range map[string][]byte{"alone": large(50_000, 2_000), "elsewhere": elsewhere(large(50_000, 2_000), 50_000, 2_000)} {
		path := filepath.Join(b.TempDir(), "mesh.yaml")
		if err := os.WriteFile(path, content, 0o600); err != nil {
			b.Fatal(err)
		}
		for kind, open := range map[string]func(string, *discovery.Store) (*file.Watcher, error){"whole": file.Open, "kept": discovered} {
			b.Run(name+"/"+kind, func(b *testing.B) {
				for b.Loop() {
					before := heap()
					store := &discovery.Store{}
					watcher, err := open(path, store)
					if err != nil {
						b.Fatal(err)
					}
					b.ReportMetric(float64(heap()-before)/(1<<20), "heap-MiB")
					runtime.KeepAlive([]any{watcher, store})
				}
			})
		}
	}
}

// instances is what gateways of all networks say, in one ledger.
type instances struct {
	b      *testing.B
	keys   map[string]networkkey.Private
	ledger *ledger.Ledger
	like   []record.Record // what the first one has said
}

func newInstances(b *testing.B) *instances {
	i := &instances{b: b, keys: map[string]networkkey.Private{}}
	known := networkkey.Known{}
	for n := range 9 {
		i.link(fmt.Sprintf("network-%d", n), known)
	}
	i.link("west", known)
	i.ledger = ledger.New(known, ledger.DefaultLimits)
	i.ledger.Draw(1, time.Now())
	return i
}

func (i *instances) link(network string, known networkkey.Known) {
	key, err := networkkey.Generate(rand.Reader)
	if err != nil {
		i.b.Fatal(err)
	}
	i.keys[network], known[network] = key, []networkkey.Public{key.Public()}
}

// say makes records the word of a gateway of west.
func (i *instances) say(records []record.Record, _ ...record.Key) {
	if len(records) > 0 {
		i.like = records
		i.join("west", records)
	}
}

// others makes two gateways of each other network say the same.
func (i *instances) others() {
	for n := range 9 {
		for range 2 {
			i.join(fmt.Sprintf("network-%d", n), i.like)
		}
	}
}

func (i *instances) join(network string, records []record.Record) {
	instance, err := networkkey.NewInstance(rand.Reader)
	now := time.Now()
	if err == nil {
		err = i.keys[network].Certify(instance, network, "gw", now, time.Hour)
	}
	if err != nil {
		i.b.Fatal(err)
	}
	p := antientropy.NewPublisher(instance, ledger.DefaultLimits.Records, ledger.DefaultLimits.Bytes)
	p.Certified(now)
	p.Answer(record.Instance{}, network, 1)
	for _, r := range records {
		if err := p.Put(r, now); err != nil {
			i.b.Fatal(err)
		}
	}
	signed, err := p.Statement(1, func(record.Instance) bool { return false }, now)
	if err != nil {
		i.b.Fatal(err)
	}
	s := signed.Statement
	from := ledger.New(networkkey.Known{network: {i.keys[network].Public()}}, ledger.DefaultLimits)
	if _, err := from.OfferOwn(s, p.Set(), nil, now); err != nil {
		i.b.Fatal(err)
	}
	if _, err := i.ledger.Offer(s, now); err != nil {
		i.b.Fatal(err)
	}
	for more := true; more; {
		var have record.Hashes
		if h := i.ledger.Hashes(instance.ID()); h != nil {
			have = *must(record.ParseHashes(h))
		}
		c := from.Chunk(instance.ID(), &have)
		if _, err := i.ledger.OfferChunk(c, now); err != nil {
			i.b.Fatal(err)
		}
		more = c.GetMore()
	}
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// heap is what is in use after a collection, in bytes.
func heap() uint64 {
	runtime.GC()
	runtime.GC() // what finalizers let go
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}
