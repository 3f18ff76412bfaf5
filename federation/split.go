package federation

// Split cuts records into runs of at most about limit bytes on the wire.
func Split(records []Record, limit int) [][]Record {
	var parts [][]Record
	start, size := 0, 0
	for i, r := range records {
		n := estimate(r)
		if i > start && size+n > limit {
			parts = append(parts, records[start:i])
			start, size = i, 0
		}
		size += n
	}
	if start < len(records) {
		parts = append(parts, records[start:])
	}
	return parts
}

// estimate is an upper bound of r's bytes on the wire when it begins a batch.
func estimate(r Record) int {
	n := 96 + len(r.Network) + len(r.Origin.Name)
	if r.Endpoint != nil {
		n += len(r.Endpoint.Reason)
	}
	if r.Summary != nil {
		n += len(r.Summary.Service) + 8*len(r.Summary.Exceptions)
	}
	return n
}
