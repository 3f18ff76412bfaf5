// Package file reads the description of a mesh from one YAML file and follows
// its changes.
//
// It promises that a file which cannot be read, is not valid YAML, or has a key or
// value that is not understood changes nothing, and that the log says which line is
// wrong, why, and what to write instead; a process that starts with such a file does
// not start. An object that is understood and cannot be used, such as a workload
// whose address another one has, is left out alone; see [Problem]. A file that would
// remove much of the mesh is held until somebody confirms it; see [Guard].
//
// What a change costs to take into force is in proportion to it; to read the file
// is not.
//
// The file is polled, because that works on every file system and through the
// symbolic links of a mounted ConfigMap. Who writes the file should write a
// new one beside it and rename: a half-written list can be valid YAML. A file
// that has just been touched is given a moment to settle for this reason.
package file

import (
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"syscall"

	"github.com/isthmus-mesh/isthmus/discovery"
	"github.com/isthmus-mesh/isthmus/internal/strictyaml"
	"github.com/isthmus-mesh/isthmus/mesh"
)

const (
	// maxBytes is the largest file that is read: 100 000 workloads of some
	// 300 bytes each, twice.
	maxBytes = 64 << 20
	// maxProblems is how many problems of one file are reported.
	maxProblems = 20
)

// Load reads the file at path and returns its snapshot with revision 1, for who
// wants a file without a mistake. The error joins one error per mistake, each with
// file:line, field, value and remedy.
func Load(path string) (*mesh.Snapshot, error) {
	data, err := read(path)
	if err != nil {
		return nil, err
	}
	return Parse(path, data, 1)
}

// Parse returns the snapshot that data describes, or everything that is wrong with
// it. name is what errors call the file.
func Parse(name string, data []byte, revision uint64) (s *mesh.Snapshot, err error) {
	doc, c, err := decode(name, data)
	if err == nil {
		var problems []discovery.Problem
		if s, problems = discovery.Build(revision, c); len(problems) == 0 {
			return s, nil
		}
		err = firstOf(name, strictyaml.Mistakes(nil, located(doc, nil, problems)))
	}
	return nil, err
}

// Usable reads the file at path as a process takes it that starts with it: s is what can
// be used, and left joins one error for each object or field that is left out. err is
// why no process starts with it: what Load refuses of keys and values, or that of all
// that it lists nothing can be used.
func Usable(path string) (s *mesh.Snapshot, left, err error) {
	data, err := read(path)
	if err != nil {
		return nil, nil, err
	}
	doc, c, err := decode(path, data)
	if err != nil {
		return nil, nil, err
	}
	s, problems := discovery.Build(1, c)
	left = firstOf(path, strictyaml.Mistakes(nil, located(doc, nil, problems)))
	if left != nil && s.NumWorkloads()+s.NumServices()+countGateways(s) == 0 {
		return nil, nil, errors.Join(left, fmt.Errorf("%s: nothing of it can be used: no gateway, service or workload is left: mend the mistakes above", path))
	}
	return s, left, nil
}

// decode reads data. It refuses what is no YAML, what has keys or values that are
// not understood, and what makes every object another: an error names these, and
// what else would be a problem.
func decode(name string, data []byte) (*strictyaml.Doc, discovery.Config, error) {
	var c discovery.Config
	doc, err := strictyaml.Parse(name, data)
	if err != nil {
		return nil, c, err
	}
	unread := doc.Decode(&c)
	if unread == nil && discovery.TrustDomain(c.TrustDomain) == nil {
		return doc, c, nil
	}
	_, problems := discovery.Build(1, c)
	return doc, c, firstOf(name, strictyaml.Mistakes(unread, located(doc, unread, problems)))
}

// located gives each problem its line. Whoever refers to a list of which a part was
// not read may be right.
func located(doc *strictyaml.Doc, unread error, problems []discovery.Problem) (out []*strictyaml.Error) {
	for _, p := range problems {
		if p.Refers == "" || !partlyUnread(unread, p.Refers) {
			out = append(out, &strictyaml.Error{File: doc.Name(), Line: doc.Line(p.Path...), Field: p.Field, Message: p.Said()})
		}
	}
	return out
}

// partlyUnread reports whether err is about a part of the list. An unknown key, which
// has no field, may have been meant as a part of any.
func partlyUnread(err error, list string) bool {
	j, ok := err.(interface{ Unwrap() []error })
	return ok && slices.ContainsFunc(j.Unwrap(), func(err error) bool {
		e := (*strictyaml.Error)(nil)
		return !errors.As(err, &e) || e.Field == "" || strings.HasPrefix(e.Field, list)
	})
}

// firstOf returns the first mistakes that err joins, and how many there are more.
func firstOf(name string, err error) error {
	j, ok := err.(interface{ Unwrap() []error })
	if !ok || len(j.Unwrap()) <= maxProblems {
		return err
	}
	shown := j.Unwrap()[:maxProblems:maxProblems]
	return errors.Join(append(shown, fmt.Errorf("%s: and %d more", name, len(j.Unwrap())-maxProblems))...)
}

func read(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("read discovery file: %w", err)
	}
	defer f.Close()
	return readAll(f)
}

// readRegular is read of a file that is followed: a pipe or a device has no content
// that could be looked at again.
func readRegular(path string) ([]byte, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0) // a FIFO that nobody writes to must not hold us
	if err != nil {
		return nil, fmt.Errorf("read discovery file: %w", err)
	}
	defer f.Close()
	switch info, err := f.Stat(); {
	case err != nil:
		return nil, fmt.Errorf("read discovery file: %w", err)
	case info.IsDir():
		return nil, fmt.Errorf("read discovery file: %s is a directory: name the file in it", path)
	case !info.Mode().IsRegular():
		return nil, fmt.Errorf("read discovery file: %s is no regular file (mode %s): write the description to a file", path, info.Mode())
	}
	return readAll(f)
}

func readAll(f *os.File) ([]byte, error) {
	data, err := io.ReadAll(io.LimitReader(f, maxBytes+1))
	if err != nil {
		return nil, fmt.Errorf("read discovery file: %w", err)
	}
	if len(data) > maxBytes {
		return nil, fmt.Errorf("read discovery file: %s is larger than %d MiB: describe fewer workloads per file", f.Name(), maxBytes>>20)
	}
	return data, nil
}
