package ads

import (
	"context"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	pb "github.com/isthmus-mesh/isthmus/control/ads/adspb"
)

const benchServices = 1000

// pod returns the i-th resource of a network of benchServices services.
func pod(i, body int) Resource {
	return Resource{Name: fmt.Sprintf("cluster//Pod/ns/pod-%d", i), Aliases: []string{fmt.Sprintf("net/10.0.%d.%d", i/256, i%256)},
		Groups: []string{fmt.Sprintf("ns/service-%d", i%benchServices), fmt.Sprintf("node/%d", i/20)}, Body: fmt.Appendf(make([]byte, 250), "%d", body)}
}

func fill(b *testing.B, s *Server, n int) {
	u := Update{Type: typeA}
	for i := range n {
		u.Resources = append(u.Resources, pod(i, 0))
	}
	if err := s.Apply(u); err != nil {
		b.Fatal(err)
	}
}

// BenchmarkChange changes one pod that one stream subscribes, up to its response.
// It must cost the same with any number of other resources and streams.
func BenchmarkChange(b *testing.B) {
	for _, resources := range []int{1000, 20_000, 50_000} {
		for _, streams := range []int{1, 1000} {
			b.Run(fmt.Sprintf("resources=%d/streams=%d", resources, streams), func(b *testing.B) {
				s := newGateway("g1").server
				fill(b, s, resources)
				var all []*stream
				for i := range streams {
					st := newStream(s, nil, func(error) {})
					s.admit(st, Proof{Identity: fmt.Sprint(i)})
					st.handle(&pb.DeltaDiscoveryRequest{TypeUrl: typeA, ResourceNamesSubscribe: []string{fmt.Sprintf("ns/service-%d", i)}})
					for st.next() != nil {
					}
					all = append(all, st)
				}
				b.ReportAllocs()
				for i := 0; b.Loop(); i++ {
					s.Apply(Update{Type: typeA, Resources: []Resource{pod(0, i+1)}})
					if m := all[0].next(); len(m.GetResources()) != 1 {
						b.Fatal("no response")
					}
				}
			})
		}
	}
}

// BenchmarkSend sends one change to all of 1 000 clients with 440 resources each over
// TCP, without TLS.
func BenchmarkSend(b *testing.B) {
	s, received := benchClients(b, 1000, func(i int) []string {
		var names []string
		for k := range 22 {
			names = append(names, fmt.Sprintf("ns/service-%d", (i+k)%benchServices)) // 20 pods each
		}
		return append(names, "shared")
	})
	before := cpuTime()
	defer func() { b.ReportMetric(float64((cpuTime()-before).Microseconds())/float64(b.N*1000), "cpu-µs/client") }()
	for i := 0; b.Loop(); i++ {
		want := received.Load() + 1000
		r := pod(0, i+1)
		r.Groups = append(r.Groups, "shared")
		s.Apply(Update{Type: typeA, Resources: []Resource{r}})
		for received.Load() < want {
			time.Sleep(time.Millisecond)
		}
	}
}

// cpuTime returns the CPU time of this process, with both ends of all streams.
func cpuTime() time.Duration {
	var u syscall.Rusage
	syscall.Getrusage(syscall.RUSAGE_SELF, &u)
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// BenchmarkWildcard connects one client that takes all of 20 000 resources.
func BenchmarkWildcard(b *testing.B) {
	s := newGateway("g1").server
	fill(b, s, 20_000)
	b.ReportAllocs()
	for b.Loop() {
		st := newStream(s, nil, func(error) {})
		s.enter(st)
		s.admit(st, Proof{})
		st.handle(&pb.DeltaDiscoveryRequest{TypeUrl: typeA})
		n := 0
		for m := st.next(); m != nil; m = st.next() {
			n += len(m.Resources)
		}
		if n != 20_000 {
			b.Fatalf("%d resources", n)
		}
		s.leave(st)
	}
}

// benchClients connects clients to a server with 20 000 resources, and counts the
// resources that they receive. It returns when the first state has been received.
func benchClients(b *testing.B, n int, names func(i int) []string) (*Server, *atomic.Int64) {
	server := newGateway("g1").server
	fill(b, server, 20_000)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	g := grpc.NewServer(server.Options()...)
	server.Register(g)
	go g.Serve(l)
	b.Cleanup(g.Stop)
	received := new(atomic.Int64)
	var ready sync.WaitGroup
	for i := range n {
		conn, err := grpc.NewClient(l.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithReadBufferSize(4<<10), grpc.WithStaticStreamWindowSize(256<<10), grpc.WithStaticConnWindowSize(256<<10))
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(func() { conn.Close() })
		stream, err := conn.NewStream(context.Background(), &service.Streams[0], "/"+serviceName+"/"+methodName)
		if err != nil {
			b.Fatal(err)
		}
		stream.SendMsg(&pb.DeltaDiscoveryRequest{Node: &pb.Node{Id: fmt.Sprint(i)}, TypeUrl: typeA, ResourceNamesSubscribe: names(i)})
		stream.SendMsg(&pb.DeltaDiscoveryRequest{TypeUrl: SyncType, ResourceNamesSubscribe: []string{"1"}})
		ready.Add(1)
		go func() {
			for {
				m := new(pb.DeltaDiscoveryResponse)
				if err := stream.RecvMsg(m); err != nil {
					return
				}
				if m.TypeUrl == SyncType {
					ready.Done()
				} else {
					received.Add(int64(len(m.Resources)))
				}
			}
		}()
	}
	ready.Wait()
	return server, received
}
