package strictyaml

import (
	"strconv"
	"strings"
)

// suggest names the known key nearest to word, or all of them if none is near.
func suggest(word string, known []string) string {
	best := Nearest(word, known)
	switch {
	case best != "":
		return "did you mean " + quote(best) + "?"
	case len(known) == 0:
		return "no key is known here; remove it"
	}
	return "known here: " + strings.Join(known, ", ")
}

// Nearest returns the known word that word was most likely meant to be, by edit
// distance and whatever the case; "" if none is near.
func Nearest(word string, known []string) string {
	best, distance := "", 1+max(2, len(word)/3)
	for _, k := range known {
		if d := editDistance(strings.ToLower(word), strings.ToLower(k), distance); d < distance {
			best, distance = k, d
		}
	}
	return best
}

// maxKnown is how many words Suggest lists where none is near.
const maxKnown = 10

// Suggest says which known word was most likely meant instead of word, or names
// the first of them if none is near.
func Suggest(word string, known []string) string {
	best, more := Nearest(word, known), len(known)-maxKnown
	switch {
	case best != "":
		return "did you mean " + quote(best) + "?"
	case len(known) == 0:
		return "there is none"
	case more > 0:
		return "known are " + strings.Join(known[:maxKnown], ", ") + " and " + strconv.Itoa(more) + " more"
	}
	return "known are " + strings.Join(known, ", ")
}

// editDistance counts the insertions, deletions, replacements and swaps of
// neighbours that turn a into b (optimal string alignment), or returns limit
// when the lengths alone say that it is at least that.
func editDistance(a, b string, limit int) int {
	if len(a)-len(b) >= limit || len(b)-len(a) >= limit {
		return limit
	}
	var before []int
	prev, row := make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range prev {
		prev[j] = j
	}
	for i := 1; i <= len(a); i++ {
		row[0] = i
		for j := 1; j <= len(b); j++ {
			cost := 1
			if a[i-1] == b[j-1] {
				cost = 0
			}
			row[j] = min(prev[j]+1, row[j-1]+1, prev[j-1]+cost)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				row[j] = min(row[j], before[j-2]+1)
			}
		}
		before, prev, row = prev, row, make([]int, len(b)+1)
	}
	return prev[len(b)]
}
