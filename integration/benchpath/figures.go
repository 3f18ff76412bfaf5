//go:build linux

package main

import "time"

// Names of figures. Those by role are followed by "/" and the role.
const (
	figRate = "rate" // GiB/s, or connections or echoes per second
	figP50  = "p50"  // microseconds
	figP99  = "p99"  // microseconds
	figCPU  = "cpu"  // of all roles together: CPU-s/GiB, or CPU µs per connection or echo; cpu/app and cpu/load apart
	figBulk = "bulk" // GiB/s of the upload beside echoes
	figIdle = "idle" // KiB resident per idle connection
	figBase = "base" // MiB resident of a proxy that has nothing to do

	// Of ours, per idle connection.
	figGoroutines = "goroutines"
	figHeap       = "heap"  // KiB
	figStack      = "stack" // KiB
)

const (
	kib = 1 << 10
	mib = 1 << 20
	gib = 1 << 30
)

// figures returns a sample's figures by name; none that would divide by zero.
func (s sample) figures(u unit) map[string]float64 {
	f := map[string]float64{}
	if u == perIdle {
		s.addMemory(f)
		return f
	}
	if s.Reply.Seconds > 0 {
		f[figRate] = s.amount(u) / s.Reply.Seconds
		if u == perEcho && s.Reply.Bytes > 0 {
			f[figBulk] = float64(s.Reply.Bytes) / gib / s.Reply.Seconds
		}
	}
	if u != perGiB && s.Reply.Ops > 0 {
		f[figP50], f[figP99] = s.Reply.P50, s.Reply.P99
	}
	if f[figBulk] == 0 && s.amount(u) > 0 { // otherwise processor time is for echoes and bulk together
		s.addCPU(f, u)
	}
	return f
}

func (s sample) addMemory(f map[string]float64) {
	for role, base := range s.Base {
		f[figBase+"/"+role] = float64(base) / mib
		if s.Reply.Ops > 0 {
			f[figIdle+"/"+role] = float64(s.RSS[role]-base) / kib / float64(s.Reply.Ops)
		}
	}
	for role, in := range s.Inside {
		if n, base := float64(s.Reply.Ops), s.InsideBase[role]; n > 0 {
			f[figGoroutines+"/"+role] = float64(in.Goroutines-base.Goroutines) / n
			f[figHeap+"/"+role] = float64(in.Heap-base.Heap) / kib / n
			f[figStack+"/"+role] = float64(in.Stack-base.Stack) / kib / n
		}
	}
}

// amount is how many of its unit a sample moved.
func (s sample) amount(u unit) float64 {
	if u == perGiB {
		return float64(s.Reply.Bytes) / gib
	}
	return float64(s.Reply.Ops)
}

func (s sample) addCPU(f map[string]float64, u unit) {
	scale := time.Microsecond
	if u == perGiB {
		scale = time.Second
	}
	f[figCPU] = 0
	for role, used := range s.CPU {
		per := float64(used) / float64(scale) / s.amount(u)
		f[figCPU+"/"+role] = per
		if role != "app" && role != "load" {
			f[figCPU] += per
		}
	}
}
