// Package settled tells when a file is no longer being written to, by what [os.Stat]
// says of it: cut at the end of a line by a rewrite in place, a list is shorter without
// any mistake. It reads no file and keeps no time itself.
package settled

import (
	"os"
	"time"
)

const (
	// Pause is how long a file must not have been written to before it is believed; a
	// rewrite in place is over by then.
	Pause = 100 * time.Millisecond
	// Patience is how long a file may be written to without such a pause before that is
	// an error.
	Patience = 2 * time.Second
)

// File is one file as it was looked at. The zero value has seen nothing. Not safe for
// concurrent use.
type File struct {
	seen  os.FileInfo
	since time.Time // when it was first seen as it is
}

// Alone takes note of the file as it is at now, and says whether nobody has written to it
// for [Pause]: by the time that the file itself has, or by our own clock, because we have
// seen it as it is for so long. The clock of a file's server may be ahead of ours, and
// then only the second tells; a time to come proves nothing.
func (f *File) Alone(info os.FileInfo, now time.Time) bool {
	if f.seen == nil || !Same(f.seen, info) {
		f.seen, f.since = info, now
	}
	return now.Sub(info.ModTime()) >= Pause || now.Sub(f.since) >= Pause
}

// Same reports whether a and b are of one file that was not written to between them, as
// far as its times and its size tell.
func Same(a, b os.FileInfo) bool {
	return os.SameFile(a, b) && a.ModTime().Equal(b.ModTime()) && a.Size() == b.Size()
}
