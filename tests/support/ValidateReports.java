import com.pixelmed.validate.DicomSRValidator;
import java.io.BufferedReader;
import java.io.InputStreamReader;

/** Validates the structured reports that standard input names: to start a process takes longer than to validate. */
public final class ValidateReports {
    /** Stands on a line of its own after the complaints about a file. */
    private static final String END = "end of file";

    public static void main(String[] none) throws Exception {
        DicomSRValidator validator = new DicomSRValidator();
        BufferedReader names = new BufferedReader(new InputStreamReader(System.in));
        for (String name = names.readLine(); name != null; name = names.readLine()) {
            System.out.println(validator.validate(name));
            System.out.println(END);
        }
    }
}
