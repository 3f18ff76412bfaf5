package meshtest

import "testing"

// checkConnections checks what holds of the lines that every process writes about
// connections, whatever the test did: a result is ok exactly if there is no error, and
// a connection that failed is one warning, not one for each attempt.
func (p *Process) checkConnections(t testing.TB) {
	warnings, outbound := map[string]int{}, map[string]int{}
	for _, l := range p.Log.Find("tunnel") {
		if l.Text("result") == "ended" && l.has("error") {
			t.Errorf("%s: a tunnel ended with an error: %v", p.Name, l)
		}
		if by := l.Text("opened_by"); by != "" && l.Text("level") == "warn" {
			warnings[by]++
		}
	}
	for _, l := range p.Log.Find("connection") {
		if ok := l.Text("result") == "ok"; ok == l.has("error") {
			t.Errorf("%s: result and error of a connection do not agree: %v", p.Name, l)
		}
		trace := l.Text("trace")
		if trace == "" {
			continue
		}
		if l.Text("level") == "warn" {
			warnings[trace]++
		}
		if l.Text("direction") == "outbound" {
			outbound[trace]++
		}
	}
	for trace, n := range warnings {
		if n > 1 {
			t.Errorf("%s warned %d times of one connection: %v", p.Name, n, append(p.Log.Find("connection", "trace", trace, "level", "warn"), p.Log.Find("tunnel", "opened_by", trace, "level", "warn")...))
		}
	}
	for trace, n := range outbound {
		if n > 1 {
			t.Errorf("%s wrote %d lines of one connection: %v", p.Name, n, p.Log.Find("connection", "trace", trace, "direction", "outbound"))
		}
	}
}
