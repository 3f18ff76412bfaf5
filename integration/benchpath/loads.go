//go:build linux

package main

import (
	"fmt"
	"time"
)

// load is one row of cells: what every variant is measured with.
type load struct {
	Name    string
	About   string
	Unit    unit
	Request request // without target
	fresh   fresh
}

// unit is what figures are per.
type unit string

const (
	perGiB        unit = "GiB"
	perConnection unit = "connection"
	perEcho       unit = "echo"
	perIdle       unit = "idle connection" // memory instead of processor time
)

// fresh says what is started anew before a measurement.
type fresh int

const (
	freshNothing fresh = iota // sessions are there
	freshClient               // the client proxy, before each connection
	freshAll                  // all roles: memory has no history
)

const (
	fixedRate  = 4000 // echoes per second
	besideRate = 500  // one every 2 ms
	coldCount  = 5    // first connections per sample
)

// loads are all loads in the order of a round. Echoes beside bulk have their
// rate alone just before.
func loads(seconds float64, idle int) (all []load) {
	for _, way := range []string{"up", "down"} {
		for _, streams := range []int{1, 16, 128} {
			all = append(all, load{
				Name:    fmt.Sprintf("%s%d", way, streams),
				About:   fmt.Sprintf("bulk %s, %d at once", map[string]string{"up": "upload", "down": "download"}[way], streams),
				Unit:    perGiB,
				Request: request{Kind: way, Streams: streams, Seconds: seconds},
			})
		}
	}
	return append(all,
		load{"conn", "new connections, 8 at a time: dial, 1 byte, 1 byte back, close", perConnection,
			request{Kind: "connect", Streams: 8, Seconds: seconds}, freshNothing},
		load{"cold", fmt.Sprintf("first connection on this way of a client proxy that has its certificate (%d times)", coldCount), perConnection,
			request{Kind: "connect", Streams: 1}, freshClient},
		load{"echo1", "1 KiB echo, 1 connection, the next when the last is back", perEcho,
			request{Kind: "echo", Streams: 1, Seconds: seconds}, freshNothing},
		load{"echo64", "1 KiB echo, 64 connections, the next when the last is back", perEcho,
			request{Kind: "echo", Streams: 64, Seconds: seconds}, freshNothing},
		load{"rate", fmt.Sprintf("1 KiB echo, %d/s over 64 connections whatever comes back; times from when each was due", fixedRate), perEcho,
			request{Kind: "paced", Streams: 64, Seconds: seconds, Rate: fixedRate}, freshNothing},
		load{"alone", "1 KiB echo every 2 ms on one connection", perEcho,
			request{Kind: "paced", Streams: 1, Seconds: seconds, Rate: besideRate}, freshNothing},
		load{"beside", "the same beside one bulk upload to the same service", perEcho,
			request{Kind: "paced", Streams: 1, Seconds: seconds, Rate: besideRate, Beside: true}, freshNothing},
		load{"idle", fmt.Sprintf("memory of %d connections that were used once", idle), perIdle,
			request{Kind: "hold", Streams: idle}, freshAll},
	)
}

// sample is what one cell, a load on a variant, gave in one run.
type sample struct {
	Load    string
	Variant string
	Run     int // from 1
	Reply   reply

	// By role, and for "app" and "load", which are no roles.
	CPU  map[string]time.Duration `json:",omitempty"` // nanoseconds during the load
	Base map[string]int64         `json:",omitempty"` // bytes resident after one connection
	RSS  map[string]int64         `json:",omitempty"` // bytes resident with all connections idle

	InsideBase map[string]inside `json:",omitempty"` // of ours, at the same two moments
	Inside     map[string]inside `json:",omitempty"`

	// Foreign is how many processors were busy with processes that are none of
	// ours, on average: above about 0.2 the sample says little.
	Foreign float64
}
