// A client in Go, with the code that protoc-gen-go and protoc-gen-go-grpc make. See ../test_languages.py.
package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	recsysv1 "recsys_serving/recsys/v1"
)

// codec is what grpc-go has had of its own since 1.36; Debian 12 has 1.33, which does not know today's generated code.
type codec struct{}

func (codec) Marshal(v interface{}) ([]byte, error) { return proto.Marshal(v.(proto.Message)) }
func (codec) Unmarshal(data []byte, v interface{}) error {
	return proto.Unmarshal(data, v.(proto.Message))
}
func (codec) Name() string { return "proto" }

func check(err error) {
	if err != nil {
		panic(err)
	}
}

// packed returns numbers as little-endian bytes.
func packed(text string, write func(out *bytes.Buffer, number string)) []byte {
	var out bytes.Buffer
	if text != "-" {
		for _, number := range strings.Split(text, ",") {
			write(&out, number)
		}
	}
	return out.Bytes()
}

func float32s(out *bytes.Buffer, number string) {
	value, err := strconv.ParseFloat(number, 32)
	check(err)
	check(binary.Write(out, binary.LittleEndian, float32(value)))
}

func int32s(out *bytes.Buffer, number string) {
	value, err := strconv.ParseInt(number, 10, 32)
	check(err)
	check(binary.Write(out, binary.LittleEndian, int32(value)))
}

func int64s(out *bytes.Buffer, number string) {
	value, err := strconv.ParseInt(number, 10, 64)
	check(err)
	check(binary.Write(out, binary.LittleEndian, value))
}

func floats(data []byte) []float32 {
	values := make([]float32, len(data)/4)
	for i := range values {
		values[i] = math.Float32frombits(binary.LittleEndian.Uint32(data[4*i:]))
	}
	return values
}

func answer(client recsysv1.PredictionServiceClient, request *recsysv1.PredictRequest) map[string]interface{} {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	response, err := client.Predict(ctx, request)
	if err != nil {
		return map[string]interface{}{"code": int(status.Code(err)), "message": status.Convert(err).Message()}
	}
	outputs := map[string]interface{}{}
	for _, output := range response.GetOutputs() {
		outputs[output.GetName()] = floats(output.GetValues())
	}
	return map[string]interface{}{"outputs": outputs}
}

func main() {
	connection, err := grpc.Dial(os.Args[1], grpc.WithInsecure(), grpc.WithDefaultCallOptions(grpc.ForceCodec(codec{})))
	check(err)
	defer connection.Close()
	client := recsysv1.NewPredictionServiceClient(connection)
	request := &recsysv1.PredictRequest{}
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		words := strings.Split(lines.Text(), " ")
		switch words[0] {
		case "rows":
			rows, err := strconv.Atoi(words[1])
			check(err)
			request.NumRows = int32(rows)
		case "dense":
			request.Dense = append(request.Dense, &recsysv1.DenseInput{Name: words[1], Values: packed(words[2], float32s)})
		case "ids":
			request.Sparse = append(request.Sparse, &recsysv1.SparseInput{
				Name:    words[1],
				Lengths: packed(words[2], int32s),
				Values:  packed(words[3], int64s),
				Weights: packed(words[4], float32s),
			})
		case "send":
			line, err := json.Marshal(answer(client, request))
			check(err)
			fmt.Println(string(line))
			request = &recsysv1.PredictRequest{}
		}
	}
}
