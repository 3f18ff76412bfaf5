package vip

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"
)

// A line of a ledger is a number, namespace/name, then @ and the network for whose exports
// it is, and, if it was given back, when. nobody stands for a name that cannot be read, and
// for numbers that cannot.
const nobody = "-"

// maxLost is how many numbers are remembered whose names cannot be read: of more, none is.
const maxLost = 1_000

// Parse reads what String has written. Lines that cannot be, and those that contradict each
// other, count for nothing but this: the number of one is nobody's for Quarantine, or, if
// that cannot be read, no number is given to anybody for so long, unless it is in use
// already (Adopt). odd says what they are.
func Parse(r Ranges, text string, now time.Time) (l *Ledger, odd []error) {
	l = New(r)
	type line struct {
		name Name
		entry
	}
	var lines []line
	names, numbers := map[Name]int{}, map[uint32]int{}
	for text := range strings.Lines(text) {
		fields := strings.Fields(text)
		if len(fields) == 0 {
			continue
		}
		number, bad := strconv.ParseUint(fields[0], 10, 32)
		known := bad == nil && r.has(uint32(number))
		if len(fields) == 3 && fields[1] == nobody && (bad == nil || fields[0] == nobody) {
			if at, err := strconv.ParseInt(fields[2], 10, 64); err == nil && at > 0 {
				if bad != nil {
					l.blind = at
				} else if known {
					l.lost[uint32(number)] = at
				}
				continue
			}
		}
		n, e, err := parseEntry(fields)
		if err != nil {
			odd = append(odd, fmt.Errorf("%.80q: %w", strings.TrimSuffix(text, "\n"), err))
			if known {
				l.lost[uint32(number)] = now.Unix()
			} else if bad != nil {
				l.blind = now.Unix()
			}
			continue
		}
		lines = append(lines, line{n, e})
		names[n]++
		numbers[e.number]++
	}
	for _, x := range lines {
		if names[x.name] > 1 || numbers[x.number] > 1 {
			odd = append(odd, fmt.Errorf("%q: the number or the name is on another line too", fmt.Sprintf("%d %s", x.number, x.name)))
			l.lost[x.number] = now.Unix()
			continue
		}
		l.give(x.name, x.entry)
	}
	if len(l.lost) > maxLost {
		clear(l.lost)
		l.blind = now.Unix()
	}
	return l, odd
}

func parseEntry(fields []string) (n Name, e entry, err error) {
	number, bad := strconv.ParseUint(fields[0], 10, 32)
	if bad != nil || len(fields) < 2 {
		return n, e, fmt.Errorf("want a number, namespace/name, @network, and perhaps a time")
	}
	e.number = uint32(number)
	var ok bool
	n.Namespace, n.Name, ok = strings.Cut(fields[1], "/")
	if !ok || n.Namespace == "" || n.Name == "" || strings.Contains(n.Name, "/") {
		return n, e, fmt.Errorf("%q is not namespace/name", fields[1])
	}
	rest := fields[2:]
	if len(rest) > 0 && strings.HasPrefix(rest[0], "@") {
		e.network, rest = rest[0][1:], rest[1:]
	}
	if len(rest) > 0 {
		e.released, bad = strconv.ParseInt(rest[0], 10, 64)
	}
	if bad != nil || len(rest) > 1 || len(rest) == 1 && e.released <= 0 {
		return n, e, fmt.Errorf("%q is not @network and a time in Unix seconds", strings.Join(fields[2:], " "))
	}
	return n, e, nil
}

// String returns l as text, one line for each number, sorted.
func (l *Ledger) String() string {
	var b strings.Builder
	if l.blind != 0 {
		fmt.Fprintf(&b, "%s %s %d\n", nobody, nobody, l.blind)
	}
	for _, number := range slices.Sorted(maps.Keys(l.lost)) {
		fmt.Fprintf(&b, "%d %s %d\n", number, nobody, l.lost[number])
	}
	for _, number := range slices.Sorted(maps.Keys(l.holders)) {
		n := l.holders[number]
		e := l.entries[n]
		fmt.Fprintf(&b, "%d %s", number, n)
		if e.network != "" {
			fmt.Fprintf(&b, " @%s", e.network)
		}
		if e.released != 0 {
			fmt.Fprintf(&b, " %d", e.released)
		}
		b.WriteByte('\n')
	}
	return b.String()
}
