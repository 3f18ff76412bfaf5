package meshtest

import (
	"iter"
	"strings"
)

func lines(b []byte) iter.Seq[string] { return strings.Lines(string(b)) }

func cutSample(line, sample string) (string, bool) {
	rest, ok := strings.CutPrefix(line, sample+" ")
	return strings.TrimSpace(rest), ok
}

func cut(account string) (ns, sa string, ok bool) { return strings.Cut(account, "/") }
