package kube

import (
	"maps"
	"slices"
	"strings"
	"unique"
)

// labels are all labels of a pod, which policies may come to select it by: kept once for all pods that
// have the same, as those of one workload mostly do. The zero value has none.
type labels struct{ packed unique.Handle[string] } // keys in order, each with its value behind it

const labelEnd = "\x00" // which no label has

// Bounds of the labels of one pod, several times what is usual: Kubernetes has none but that of an object, and
// gateways and the pod's node proxy hold them all.
const (
	maxLabels     = 256
	maxLabelBytes = 16 << 10
)

// crowded is kept in place of labels that are beyond these.
var crowded = map[string]string{labelCrowded: "true"}

func labelsOf(m map[string]string) (l labels) {
	if len(m) == 0 {
		return l
	}
	size := 0
	for k, v := range m {
		size += len(k) + len(v) + 2*len(labelEnd)
	}
	if len(m) > maxLabels || size > maxLabelBytes {
		m = crowded
	}
	var b strings.Builder
	for _, k := range slices.Sorted(maps.Keys(m)) {
		if v := m[k]; !strings.Contains(k+v, labelEnd) {
			b.WriteString(k + labelEnd + v + labelEnd)
		}
	}
	return labels{unique.Make(b.String())}
}

// each yields every label.
func (l labels) each(yield func(k, v string) bool) {
	if l == (labels{}) {
		return
	}
	for rest := l.packed.Value(); rest != ""; {
		var k, v string
		k, rest, _ = strings.Cut(rest, labelEnd)
		v, rest, _ = strings.Cut(rest, labelEnd)
		if !yield(k, v) {
			return
		}
	}
}

// get returns the value of a label; "" if there is none.
func (l labels) get(key string) (value string) {
	for k, v := range l.each {
		if k == key {
			return v
		}
	}
	return ""
}

// all returns every label, nil if there is none.
func (l labels) all() (out map[string]string) {
	for k, v := range l.each {
		if out == nil {
			out = map[string]string{}
		}
		out[k] = v
	}
	return out
}
