package hbone

// receiver is what a session receives with. It belongs to the reading goroutine
// alone and has no lock.
type receiver struct {
	frames     *frameReader
	batch      batch
	windowLow  bool  // the peer has used up most of the connection's window
	idleFrames meter // frames that carry nothing
	resets     meter // of CONNECTs before their response
	newStreams meter // CONNECTs of the client, refused ones too
}
