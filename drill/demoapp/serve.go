package demoapp

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
)

// maxLine bounds what one line may hold in memory.
const maxLine = 8 << 10

// maxBody is how much of a request's body is read before answering.
const maxBody = 1 << 20

// serve answers lines until the peer ends. A first line that begins like an
// HTTP/1 request turns the connection into HTTP.
func (p *port) serve(c net.Conn) {
	defer c.Close()
	me := fmt.Sprintf("%s %d", p.app.cfg.Name, p.addr.Port())
	if p.app.cfg.Exchange == Banner {
		p.awaitAnswering()
		if _, err := fmt.Fprintf(c, "%s\n", me); err != nil {
			return
		}
	}
	r := bufio.NewReaderSize(c, maxLine)
	if p.app.cfg.Exchange == Request && looksHTTP(r) {
		p.serveHTTP(c, r, me)
		return
	}
	for {
		line, err := r.ReadSlice('\n')
		if err != nil {
			return
		}
		word, n, ok := strings.Cut(strings.TrimSpace(string(line)), " ")
		bytes := 0
		if word == Pour || word == Sink {
			n, bytes = transfer(n)
		}
		answer := me + "\n"
		if ok {
			answer = me + " " + n + "\n"
		}
		p.awaitAnswering()
		if _, err := c.Write([]byte(answer)); err != nil {
			return
		}
		if err := move(c, r, word, bytes); err != nil {
			return
		}
	}
}

// The words of lines that ask for a transfer: "pour <n> <bytes>" is answered as
// any line and then with so many bytes, "sink <n> <bytes>" is answered and then
// takes so many.
const (
	Pour = "pour"
	Sink = "sink"
)

// maxTransfer bounds what one line may ask for.
const maxTransfer = 1 << 30

// transfer splits "<n> <bytes>".
func transfer(rest string) (n string, bytes int) {
	n, number, _ := strings.Cut(rest, " ")
	bytes, err := strconv.Atoi(number)
	if err != nil || bytes < 0 {
		return n, 0
	}
	return n, min(bytes, maxTransfer)
}

// pattern is what transfers are made of; whoever reads one may compare.
var pattern = slices.Repeat([]byte("0123456789abcdefghijklmnopqrstuvwxyz-"), 1024)

// PatternLength is after how many bytes a transfer repeats itself.
const PatternLength = 37

// PatternAt is the byte of every transfer at an offset.
func PatternAt(offset int) byte { return pattern[offset%PatternLength] }

// move makes the transfer that a line asked for, if it did.
func move(c net.Conn, r *bufio.Reader, word string, bytes int) error {
	switch word {
	case Pour:
		for at := 0; at < bytes; {
			n, err := c.Write(pattern[:min(len(pattern), bytes-at)]) // a multiple of its length, or the last
			if at += n; err != nil {
				return err
			}
		}
	case Sink:
		_, err := io.CopyN(io.Discard, r, int64(bytes))
		return err
	}
	return nil
}

var methods = []string{"GET ", "HEAD ", "POST ", "PUT ", "DELETE ", "OPTIONS ", "PATCH "}

// looksHTTP waits for the first bytes of the connection and says whether they
// are a request line's.
func looksHTTP(r *bufio.Reader) bool {
	var head []byte
	for n := 1; n <= 4; n++ { // one by one: a line may be shorter than four bytes
		var err error
		if head, err = r.Peek(n); err != nil || head[n-1] == '\n' {
			return false
		}
	}
	return slices.ContainsFunc(methods, func(m string) bool { return m[:4] == string(head) })
}

// serveHTTP answers every request with who this is.
func (p *port) serveHTTP(c net.Conn, r *bufio.Reader, me string) {
	for {
		req, err := http.ReadRequest(r)
		if err != nil {
			return
		}
		// A longer body than this ends the connection half read.
		n, _ := io.CopyN(io.Discard, req.Body, maxBody)
		last := req.Close || n == maxBody
		body := me + "\n"
		connection := "keep-alive"
		if last {
			connection = "close"
		}
		head := fmt.Sprintf("HTTP/1.1 200 OK\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: %d\r\nConnection: %s\r\n\r\n", len(body), connection)
		if req.Method == http.MethodHead {
			body = ""
		}
		p.awaitAnswering()
		if _, err := c.Write([]byte(head + body)); err != nil || last {
			return
		}
	}
}
