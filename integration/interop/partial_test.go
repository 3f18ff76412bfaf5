package interop

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/isthmus-mesh/isthmus/internal/netspace"
)

// loadRate is what a stock client opens per second while something breaks.
const loadRate = 200

// A stock client cannot retry: what it loses to pods that begin to refuse is what
// they answer before our gateway knows.
func TestStockClientHardlyNoticesPodsThatRefuse(t *testing.T) {
	need(t)
	const most = 3
	apps := startMany(t)
	c := cell{"client-stock", "many", "far", vip("far-many", 80)}
	breakUnderLoad(t, c, most, fmt.Sprintf("2 of %d pods begin to refuse", manyPods), func() {
		apps[3].Close()
		apps[7].Close()
	})
}

// breakUnderLoad breaks something while a client opens connections. It fails the
// test if more than most of those that begin in the next 2 s are lost, or any that
// begins long before or later. What was under way at that moment is only counted:
// a server that is killed takes it along.
func breakUnderLoad(t *testing.T, c cell, most int, what string, breaks func()) {
	t.Helper()
	l := startLoad(t, c, loadRate)
	begin := time.Now()
	time.Sleep(3 * time.Second)
	broke := time.Now()
	breaks()
	time.Sleep(5 * time.Second)
	end := time.Now()
	l.end()
	before, to := broke.Add(-time.Second), broke.Add(2*time.Second)
	if all, lost := l.between(begin, before); len(lost) > 0 || len(all) < loadRate/2 {
		t.Errorf("%d of %d connections were lost before anything broke, want none of at least %d; the first: %v", len(lost), len(all), loadRate/2, first(lost))
	}
	_, cut := l.between(before, broke)
	all, lost := l.between(broke, to)
	t.Logf("%s: %d of %d connections lost at %d/s, the last %v after that, and %d that were under way; slowest %v", what, len(lost), len(all), loadRate, lastOf(lost, broke), len(cut), slowest(all))
	if len(lost) > most {
		t.Errorf("%d connections lost, want at most %d; the first: %v", len(lost), most, first(lost))
	}
	if all, lost := l.between(to, end); len(lost) > 0 || len(all) < loadRate/2 {
		t.Errorf("%d of %d connections were lost long after that, want none of at least %d; the first: %v", len(lost), len(all), loadRate/2, first(lost))
	}
}

// startMany starts the pods behind our node proxy and returns when a connection
// to them works.
func startMany(t *testing.T) (apps []net.Listener) {
	t.Helper()
	for i := range manyPods {
		l, err := here.serveApp("server-many", manyAddress(i), fmt.Sprint("many-", i))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { l.Close() })
		apps = append(apps, l)
	}
	if err := here.startOurs("server-many"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { here.proxies["server-many"].Stop(os.Kill, 5*time.Second) })
	time.Sleep(time.Second) // its health stream to the gateway
	return apps
}

// What a gateway can know of a stock server is whether it takes connections and
// answers hellos on them. One that is killed cuts off what it was serving.
func TestStockClientAndAStockServerThatIsGone(t *testing.T) {
	need(t)
	for _, broken := range []struct {
		name string
		sig  syscall.Signal
	}{{"told to end", syscall.SIGTERM}, {"killed", syscall.SIGKILL}, {"stopped", syscall.SIGSTOP}} {
		t.Run(broken.name, func(t *testing.T) {
			victim := startHerd(t)
			c := cell{"client-stock", "herd", "far", vip("far-herd", 80)}
			breakUnderLoad(t, c, 1, "1 of 3 stock servers is "+broken.name, func() { victim.Signal(broken.sig) })
		})
	}
}

// startHerd starts two more stock servers beside the one that is always there,
// and returns the last of them.
func startHerd(t *testing.T) (last *netspace.Process) {
	t.Helper()
	for i := 2; i <= 3; i++ {
		host := fmt.Sprint("server-stock-", i)
		app, err := here.serveApp(host, addresses[host], fmt.Sprint("herd-", i))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { app.Close() })
		if err := here.startStock(host, fmt.Sprintf("demo/herd-%d/pay", i), "net-b"); err != nil {
			t.Fatal(err)
		}
		last = here.proxies[host]
		t.Cleanup(func() {
			here.proxies[host].Signal(syscall.SIGCONT)
			here.proxies[host].Stop(os.Kill, 5*time.Second)
			here.cas[host].Stop(os.Kill, 5*time.Second)
		})
	}
	meet := func() bool { // all three answer
		seen := map[string]bool{}
		for range 30 {
			name, _ := here.who(cell{"client-stock", "herd", "far", vip("far-herd", 80)})
			seen[name] = true
		}
		return len(seen) == 3 && !seen[""]
	}
	for end := time.Now().Add(patience); !meet(); time.Sleep(100 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("the three stock servers do not all answer; logs in %s", filepath.Base(here.Dir))
		}
	}
	return last
}

func first(lost []attempt) any {
	if len(lost) == 0 {
		return "none"
	}
	return lost[0]
}

func lastOf(lost []attempt, since time.Time) any {
	if len(lost) == 0 {
		return "none"
	}
	return lost[len(lost)-1].begun.Sub(since).Round(time.Millisecond)
}

func slowest(all []attempt) time.Duration {
	var d time.Duration
	for _, a := range all {
		d = max(d, a.took)
	}
	return d.Round(time.Millisecond)
}
