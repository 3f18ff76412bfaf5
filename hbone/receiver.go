package hbone

import "github.com/isthmus-mesh/isthmus/hbone/wire"

// receiver is what a session receives with. It belongs to the reading goroutine
// alone and has no lock.
type receiver struct {
	frames     *frameReader
	batch      batch
	windowLow  bool       // the peer has used up most of the connection's window
	idleFrames wire.Meter // frames that carry nothing
	resets     wire.Meter // of CONNECTs before their response
	newStreams wire.Meter // CONNECTs of the client, refused ones too
}
